import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.LongAdder;
import org.apache.mina.core.buffer.IoBuffer;
import org.apache.mina.core.service.IoHandlerAdapter;
import org.apache.mina.core.session.IoSession;
import org.apache.mina.transport.socket.nio.NioSocketAcceptor;

/**
 * HTTP of the barest kind on Apache MINA: two bytes for each request head, counted at the server; GET /count tells how
 * many so far. The I/O processors do all the work, as MINA does without an executor.   MinaServer PORT PROCESSORS
 */
public final class MinaServer extends IoHandlerAdapter {
    private static final String SEEN = "seen";
    private final LongAdder answered = new LongAdder();

    public static void main(String[] args) throws Exception {
        NioSocketAcceptor acceptor = new NioSocketAcceptor(Integer.parseInt(args[1]));
        acceptor.setReuseAddress(true);
        acceptor.setBacklog(4096);
        acceptor.getSessionConfig().setTcpNoDelay(true);
        acceptor.setHandler(new MinaServer());
        acceptor.bind(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0])));
    }

    @Override
    public void messageReceived(IoSession session, Object message) {
        IoBuffer bytes = (IoBuffer) message;
        boolean asksCount = bytes.remaining() > 6 && bytes.get(bytes.position() + 5) == 'c';
        int seen = (Integer) session.getAttribute(SEEN, 0); // of the empty line that ends a head
        int whole = 0;
        while (bytes.hasRemaining()) {
            byte next = bytes.get();
            seen = next == (seen % 2 == 0 ? '\r' : '\n') ? seen + 1 : next == '\r' ? 1 : 0;
            if (seen == 4) {
                whole++;
                seen = 0;
            }
        }
        session.setAttribute(SEEN, seen);
        for (int i = 0; i < whole; i++) {
            String body = asksCount ? Long.toString(answered.sum()) : "OK";
            answered.increment();
            String answer = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: " + body.length() + "\r\n\r\n" + body;
            session.write(IoBuffer.wrap(answer.getBytes(StandardCharsets.US_ASCII)));
        }
    }

    @Override
    public void exceptionCaught(IoSession session, Throwable cause) {
        session.closeNow();
    }
}
