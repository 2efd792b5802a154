-- The server of a concurrency demo: a light thread for each connection, which reads once up to 1,024 bytes, writes the
-- same back and closes.   EchoServer PORT +RTS -N
module Main (main) where

import Control.Concurrent (forkIO)
import Control.Exception (SomeException, finally, try)
import Control.Monad (forever, void)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Environment (getArgs)

main :: IO ()
main = do
  [port] <- getArgs
  listener <- socket AF_INET Stream defaultProtocol
  setSocketOption listener ReuseAddr 1
  setSocketOption listener NoDelay 1
  bind listener (SockAddrInet (fromInteger (read port)) (tupleToHostAddress (127, 0, 0, 1)))
  listen listener maxListenQueue
  forever $ do
    (connection, _) <- accept listener
    setSocketOption connection NoDelay 1
    void . forkIO $ serve connection `finally` close connection

serve :: Socket -> IO ()
serve connection = do
  result <- try (recv connection 1024 >>= sendAll connection) :: IO (Either SomeException ())
  either (const (return ())) return result
