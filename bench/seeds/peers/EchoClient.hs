-- The client of a concurrency demo: CONC workers draw batches of max 1 (REQS / CONC / 4) requests; each request connects,
-- sends a request line, reads once, closes. An empty read is an error.   EchoClient HOST PORT CONC REQS +RTS -N
module Main (main) where

import Control.Concurrent (forkIO, newEmptyMVar, newMVar, modifyMVar, putMVar, takeMVar)
import Control.Exception (SomeException, bracket, evaluate, try)
import Control.Monad (forM_, replicateM, when)
import qualified Data.ByteString as Bytes
import qualified Data.ByteString.Char8 as Text
import Data.List (foldl')
import GHC.Clock (getMonotonicTimeNSec)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Environment (getArgs)

data Outcome = Outcome { failure :: Maybe String, seconds :: !Double }

main :: IO ()
main = do
  [host, port, concText, reqsText] <- getArgs
  let (conc, reqs) = (read concText, read reqsText) :: (Int, Int)
      batch = max 1 (reqs `div` conc `div` 4)
  putStrLn $ "conc=" ++ show conc ++ " reqs=" ++ show reqs ++ " batchSize=" ++ show batch
  address : _ <- getAddrInfo (Just defaultHints { addrSocketType = Stream }) (Just host) (Just port)
  left <- newMVar reqs
  began <- now
  results <- replicateM conc $ do
    result <- newEmptyMVar
    _ <- forkIO (work address left batch [] >>= putMVar result)
    return result
  outcomes <- concat <$> mapM takeMVar results
  ended <- now
  let good = [seconds o | o <- outcomes, Nothing <- [failure o]]
      bad = [(why, seconds o) | o <- outcomes, Just why <- [failure o]]
  putStrLn $ "successes=" ++ show (length good) ++ " in " ++ show (sum good) ++ " s"
  putStrLn $ "errors=" ++ show (length bad) ++ " in " ++ show (sum (map snd bad)) ++ " s"
  forM_ bad $ \(why, spent) -> putStrLn $ "error: " ++ why ++ " after " ++ show spent ++ " s"
  when (not (null good)) . putStrLn $
    "min=" ++ show (minimum good) ++ " max=" ++ show (maximum good) ++ " avg=" ++ show (sum good / fromIntegral (length good))
  putStrLn $ "requests/s=" ++ show (fromIntegral (length good) / (ended - began))

work address left batch done = do
  mine <- modifyMVar left $ \n -> let mine = min n batch in return (n - mine, mine)
  if mine == 0 then return done else do
    outcomes <- replicateM mine (request address)
    let done' = foldl' (flip (:)) done outcomes
    length done' `seq` work address left batch done'

request :: AddrInfo -> IO Outcome
request address = do
  began <- now
  result <- try . bracket (openSocket address) close $ \connection -> do
    connect connection (addrAddress address)
    sendAll connection (Text.pack "GET /\r\n\r\n")
    answer <- recv connection 1024
    evaluate (Bytes.length answer)
  ended <- now
  let why = case result of
        Left problem -> Just (show (problem :: SomeException))
        Right 0 -> Just "an empty read"
        Right _ -> Nothing
  return $! Outcome why (ended - began)

now :: IO Double
now = (/ 1e9) . fromIntegral <$> getMonotonicTimeNSec
