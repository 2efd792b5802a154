//! The flags of `serve` for AJP/1.3, and how they become options of its listeners.

use super::args::{number, yes_or_no};
use crate::{
    config::{Address, AjpOptions, ConfigError, NamePatterns, Secret, address_or_port},
    limits::AJP_PACKET_BYTES,
};
use clap::Args;
use std::{convert::Infallible, fs, path::PathBuf};

/// The part of `serve`'s arguments that is about AJP.
#[derive(Debug, Args)]
#[command(next_help_heading = "AJP/1.3")]
pub struct AjpArgs {
    /// Serve by AJP/1.3 at this address too, or at this port of 127.0.0.1, for Apache and others; may come again, or as a
    /// list with commas
    #[arg(long, value_name = "ADDR|PORT", env = "EVERYCORE_AJP", value_delimiter = ',')]
    #[arg(value_parser = address_or_port)]
    pub ajp: Vec<Address>,
    /// File that holds the secret every AJP request must bring
    #[arg(long, value_name = "FILE", env = "EVERYCORE_AJP_SECRET_FILE")]
    pub ajp_secret_file: Option<PathBuf>,
    /// Let everyone who can connect forward requests; on loopback addresses and unix sockets only
    #[arg(long, env = "EVERYCORE_AJP_NO_SECRET", value_parser = yes_or_no)]
    pub ajp_no_secret: bool,
    /// Bytes of an AJP packet, 8192 to 65536: as large as the proxy's (ProxyIOBufferSize, max_packet_size)
    #[arg(long, value_name = "BYTES", env = "EVERYCORE_AJP_PACKET_SIZE", default_value_t = AJP_PACKET_BYTES)]
    #[arg(value_parser = number::<usize>)]
    pub ajp_packet_size: usize,
    /// Tell handlers whom the AJP proxy says it logged in
    #[arg(long, env = "EVERYCORE_AJP_TRUST_USER", value_parser = yes_or_no)]
    pub ajp_trust_user: bool,
    /// Attributes that an AJP proxy may set, such as SSL_*,REMOTE_ROLE; requests with others are refused
    #[arg(long, value_name = "NAMES", env = "EVERYCORE_AJP_ATTRIBUTES", value_parser = names)]
    pub ajp_attributes: Option<NamePatterns>,
}

fn names(text: &str) -> Result<NamePatterns, Infallible> {
    text.parse()
}

impl AjpArgs {
    /// The listeners, which share their options.
    pub(super) fn listeners(self) -> Result<Vec<(Address, AjpOptions)>, ConfigError> {
        if self.ajp.is_empty() {
            return Ok(Vec::new());
        }
        let options = AjpOptions {
            secret: self.secret()?,
            packet_bytes_max: self.ajp_packet_size,
            trusts_user: self.ajp_trust_user,
            attributes: self.ajp_attributes.unwrap_or_default(),
        };
        Ok(self.ajp.into_iter().map(|address| (address, options.clone())).collect())
    }

    fn secret(&self) -> Result<Option<Secret>, ConfigError> {
        let wrong = |name, expected: &str, got: String| ConfigError { name, expected: expected.to_owned(), got };
        match (&self.ajp_secret_file, self.ajp_no_secret) {
            (None, true) => Ok(None),
            (Some(file), false) => match fs::read_to_string(file) {
                Ok(secret) => Ok(Some(Secret(secret.trim_end_matches(['\r', '\n']).to_owned()))),
                Err(error) => {
                    let got = format!("{}: {error}", file.display());
                    Err(wrong("ajp-secret-file", "a file that can be read", got))
                }
            },
            (given, _) => {
                let got = if given.is_some() { "both" } else { "neither" };
                Err(wrong("ajp", "either --ajp-secret-file or --ajp-no-secret with it", got.to_owned()))
            }
        }
    }
}
