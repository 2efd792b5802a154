//! monoio's own TCP stream over io_uring, with the floor's counting and constant replies: no HTTP server,
//! but what the runtime and its sockets cost.

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};
use raw::{HeadCounter, Mode, Replies};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

fn main() -> io::Result<()> {
    let (port, mode) = raw::arguments();
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new()
        .with_entries(4096)
        .build()?;
    runtime.block_on(async {
        let replies = Rc::new(RefCell::new(Replies::new("monoio", mode)));
        let listener = TcpListener::from_std(raw::listen(port)?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            monoio::spawn(serve(stream, mode, replies.clone()));
        }
    })
}

async fn serve(mut stream: TcpStream, mode: Mode, replies: Rc<RefCell<Replies>>) -> io::Result<()> {
    let mut heads = HeadCounter::default();
    let (mut input, mut output) = (Vec::with_capacity(8192), Vec::new());
    loop {
        let (read, buffer) = stream.read(input).await;
        input = buffer;
        let len = read?;
        if len == 0 {
            return Ok(());
        }
        let count = heads.count(&input[..len]);
        if count == 0 {
            continue;
        }
        replies.borrow_mut().append(count, &mut output);
        let (written, buffer) = stream.write_all(output).await;
        output = buffer;
        output.clear();
        if written? == 0 || mode == Mode::Close {
            return Ok(());
        }
    }
}
