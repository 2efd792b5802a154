//! glommio's own TCP stream, with the floor's counting and constant replies: no HTTP server, but what the
//! sockets that everycore does not use would cost.

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement};
use raw::{HeadCounter, Mode, Replies};
use std::cell::RefCell;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::rc::Rc;

fn main() -> io::Result<()> {
    let (port, mode) = raw::arguments();
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make()?;
    executor.run(async move {
        let replies = Rc::new(RefCell::new(Replies::new("glommio", mode)));
        let listener = raw::listen(port)?;
        listener.set_nonblocking(true)?;
        // SAFETY: the descriptor is a listener's, and given up by it.
        let listener = unsafe { TcpListener::from_raw_fd(listener.into_raw_fd()) };
        loop {
            let stream = listener.accept().await?;
            glommio::spawn_local(serve(stream, mode, replies.clone())).detach();
        }
    })
}

async fn serve(mut stream: TcpStream, mode: Mode, replies: Rc<RefCell<Replies>>) -> io::Result<()> {
    let mut heads = HeadCounter::default();
    let (mut input, mut output) = (vec![0; 8192], Vec::new());
    loop {
        let len = stream.read(&mut input).await?;
        if len == 0 {
            return Ok(());
        }
        let count = heads.count(&input[..len]);
        if count == 0 {
            continue;
        }
        replies.borrow_mut().append(count, &mut output);
        stream.write_all(&output).await?;
        output.clear();
        if mode == Mode::Close {
            return Ok(());
        }
    }
}
