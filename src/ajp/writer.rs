//! Writes what a proxy sends, for tests. Floor 1.

/// A FORWARD_REQUEST, one part after the other; every part can be left out or be wrong.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) method: u8,
    pub(crate) protocol: &'static str,
    pub(crate) uri: Vec<u8>,
    pub(crate) fields: Vec<u8>,
    pub(crate) field_count: u16,
    pub(crate) attributes: Vec<u8>,
}

pub(crate) fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u16).to_be_bytes(), text, &[0]].concat()
}

pub(crate) fn packet(payload: &[u8]) -> Vec<u8> {
    [&[0x12, 0x34], &(payload.len() as u16).to_be_bytes()[..], payload].concat()
}

/// A body packet.
pub(crate) fn data(bytes: &[u8]) -> Vec<u8> {
    packet(&[&(bytes.len() as u16).to_be_bytes(), bytes].concat())
}

impl Request {
    /// GET with a Host; method by code.
    pub(crate) fn new(method: u8, uri: impl AsRef<[u8]>) -> Self {
        let (protocol, uri) = ("HTTP/1.1", uri.as_ref().to_vec());
        Request { method, protocol, uri, fields: Vec::new(), field_count: 0, attributes: Vec::new() }.coded(0x0b, "x")
    }

    pub(crate) fn get(uri: impl AsRef<[u8]>) -> Self {
        Request::new(2, uri)
    }

    pub(crate) fn post(uri: impl AsRef<[u8]>) -> Self {
        Request::new(4, uri)
    }

    pub(crate) fn protocol(self, protocol: &'static str) -> Self {
        Request { protocol, ..self }
    }

    /// A header by code.
    pub(crate) fn coded(mut self, code: u8, value: &str) -> Self {
        self.fields.extend([0xa0, code]);
        self.fields.extend(string(value));
        self.field_count += 1;
        self
    }

    pub(crate) fn length(self, length: usize) -> Self {
        self.coded(0x08, &length.to_string())
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.fields.extend(string(name));
        self.fields.extend(string(value));
        self.field_count += 1;
        self
    }

    pub(crate) fn no_headers(self) -> Self {
        Request { fields: Vec::new(), field_count: 0, ..self }
    }

    /// An attribute whose value is a string.
    pub(crate) fn attribute(self, code: u8, value: &str) -> Self {
        self.raw(&[&[code], &string(value)[..]].concat())
    }

    pub(crate) fn named(self, name: &str, value: &str) -> Self {
        self.raw(&[&[0x0a], &string(name)[..], &string(value)].concat())
    }

    /// Bytes among the attributes.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.attributes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        let mut payload = vec![0x02, self.method];
        payload.extend(string(self.protocol));
        payload.extend(string(&self.uri));
        payload.extend(string("203.0.113.7"));
        payload.extend([0xff, 0xff]); // remote_host
        payload.extend(string("x"));
        payload.extend([0x01, 0xbb, 1]); // port 443, TLS
        payload.extend(self.field_count.to_be_bytes());
        payload.extend(&self.fields);
        payload.extend(&self.attributes);
        payload.push(0xff);
        payload
    }

    pub(crate) fn packet(&self) -> Vec<u8> {
        packet(&self.payload())
    }
}
