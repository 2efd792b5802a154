//! The load generator: measures any HTTP/1 server. Floor 6.
//!
//! One pinned thread, executor and ring a shard, as in the server; each connection is a task. Its models:
//! - **closed**: so many connections, each sends when its last request is answered;
//! - **open**: requests are due at given times, whatever the server does, and latency counts from then. A server that
//!   stops for a second is seen to have stopped: what was due meanwhile waited, and is recorded as having waited.
//!
//! Not for: TLS, HTTP/2, scripting. No record of a single request is kept: memory does not grow with a run.
//!
//! ```no_run
//! use everycore::load::{self, Plan};
//! use std::{sync::{Arc, atomic::AtomicBool}, time::Duration};
//! let mut plan = Plan::new("http://127.0.0.1:8080/".parse()?);
//! plan.extent.duration = Some(Duration::from_secs(2));
//! let plan = plan.validate()?;
//! let outcome = load::run(&plan, &Arc::new(AtomicBool::new(false)), &mut |_, _| {})?;
//! println!("{:.0} requests/s", load::Report::new(&plan, &outcome).rate.mean);
//! # Ok::<(), load::LoadError>(())
//! ```

mod client;
mod collect;
mod pace;
mod plan;
pub mod progress;
mod record;
pub mod report;
mod request;
mod response;
mod run;
mod target;
mod threshold;

pub use plan::{Arrivals, Extent, Model, Plan, StatusSet};
pub use record::{Fault, Figures, Tally};
pub use report::Report;
pub use request::{Common, Mix, Wanted, parse_urls};
pub use response::{Answer, Malformed, ResponseParser, Step};
pub use run::{Outcome, Row, ShardEnd, run};
pub use target::{Address, LoadError, Scheme, Url};
pub use threshold::{Threshold, ThresholdError};
