//! `everycore bench`: arguments, files and exit codes of the load generator. Floor 8.

use super::args::{duration, exit};
use crate::{
    limits::{LOAD_CONNECT_TIMEOUT, LOAD_INTERVAL_MIN, LOAD_REQUEST_TIMEOUT},
    load::{
        self, Arrivals, Common, Figures, LoadError, Model, Plan, Report, Row, StatusSet, Threshold, Url,
        progress::Progress, report,
    },
};
use clap::{Args, Subcommand, ValueEnum};
use hdrhistogram::serialization::{V2DeflateSerializer, interval_log::IntervalLogWriterBuilder};
use http::{HeaderName, HeaderValue, Method};
use signal_hook::consts::SIGINT;
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

/// What `bench` tells its parent besides the codes of all commands: a condition of `--fail-if` held.
pub const EXIT_FAIL_IF: u8 = 3;

const LOAD: &str = "Load";
const REQUEST: &str = "Request";
const CHECKS: &str = "Checks";
const OUTPUT: &str = "Output";

/// Arguments of `bench`. Times: 10 or 10s, 250ms, 500us, 2m, 1h.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(
    after_help = "Latency of the closed model counts from sending; with --rate from when the request was due, whatever \
    the server did then.\nExit codes: 0 done, 1 no run or no answer, 2 wrong usage, 3 a condition of --fail-if held."
)]
pub struct BenchArgs {
    /// Work on saved results instead
    #[command(subcommand)]
    pub command: Option<BenchCommand>,

    #[allow(rustdoc::broken_intra_doc_links)] // it is help, where brackets are brackets
    /// http://host[:port][/path]; or tcp://host:port: a connection a request, one read each
    #[arg(required_unless_present = "urls")]
    pub url: Option<String>,

    /// Connections of all threads together
    #[arg(long, short, value_name = "N", default_value_t = 64, help_heading = LOAD)]
    pub connections: usize,
    /// Threads, each with a ring and tied to a core; the last allowed cores are taken first
    #[arg(long, short, value_name = "N", default_value_t = 1, help_heading = LOAD)]
    pub threads: usize,
    /// Length of the run, warm-up not counted; 10s if no --requests are given
    #[arg(long, short, value_name = "TIME", value_parser = duration, help_heading = LOAD)]
    pub duration: Option<Duration>,
    /// End after so many requests
    #[arg(long, short = 'n', value_name = "N", help_heading = LOAD)]
    pub requests: Option<u64>,
    /// Load the server for so long before anything is counted
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0", help_heading = LOAD)]
    pub warmup: Duration,
    /// Open model: so many requests a second in all, whether the server keeps up or not
    #[arg(long, short = 'R', value_name = "PER_SECOND", help_heading = LOAD)]
    pub rate: Option<f64>,
    /// How the requests of an open model are spread
    #[arg(long, value_name = "HOW", default_value = "constant", requires = "rate", help_heading = LOAD)]
    pub arrivals: ArrivalsArg,
    /// Requests sent together on each connection, the next ones when all are answered; with --rate: in flight at most
    #[arg(long, short, value_name = "N", default_value_t = 1, help_heading = LOAD)]
    pub pipeline: usize,
    /// A connection for each request, its opening included in the latency
    #[arg(long, conflicts_with = "requests_per_connection", help_heading = LOAD)]
    pub no_keepalive: bool,
    /// Open a connection anew after so many requests
    #[arg(long, value_name = "N", help_heading = LOAD)]
    pub requests_per_connection: Option<u64>,
    /// Requests that a connection draws at once of --requests; auto: a quarter of its even share, at least 1
    #[arg(long, value_name = "N|auto", default_value = "1", help_heading = LOAD)]
    pub batch: String,
    /// Until a connection is established
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = LOAD)]
    pub connect_timeout: Option<Duration>,
    /// From sending a request to the last byte of its answer
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = LOAD)]
    pub timeout: Option<Duration>,
    /// Seed of weights and arrivals
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = LOAD)]
    pub seed: u64,

    /// Method; GET, or POST if there is a body
    #[arg(long, short = 'X', value_name = "METHOD", help_heading = REQUEST)]
    pub method: Option<Method>,
    /// 'Name: value'; may come again
    #[arg(long, short = 'H', value_name = "FIELD", value_parser = header, help_heading = REQUEST)]
    pub header: Vec<(HeaderName, HeaderValue)>,
    /// Body of each request
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file", help_heading = REQUEST)]
    pub body: Option<String>,
    /// File with the body of each request
    #[arg(long, value_name = "FILE", help_heading = REQUEST)]
    pub body_file: Option<PathBuf>,
    /// Ask in HTTP/1.0
    #[arg(long, help_heading = REQUEST)]
    pub http10: bool,
    #[allow(rustdoc::broken_intra_doc_links)]
    /// File with lines of [weight] [METHOD] URL or /path, all for one server
    #[arg(long, value_name = "FILE", help_heading = REQUEST)]
    pub urls: Option<PathBuf>,
    /// Reach the server over this unix socket; the URL gives Host and path
    #[arg(long, value_name = "PATH", help_heading = REQUEST)]
    pub unix: Option<PathBuf>,

    /// Other statuses are errors: 200, 2xx, 200,304
    #[arg(long, value_name = "CODES", help_heading = CHECKS)]
    pub expect_status: Option<StatusSet>,
    /// Other bodies are errors; @FILE takes it from a file
    #[arg(long, value_name = "TEXT|@FILE", help_heading = CHECKS)]
    pub expect_body: Option<String>,
    /// Exit code 3 if this holds: p99>5ms, max>1s, rate<10000, errors>0, errors>1%, non2xx>0; may come again
    #[arg(long, value_name = "CONDITION", help_heading = CHECKS)]
    pub fail_if: Vec<Threshold>,

    /// Print the result as JSON
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
    /// Write the JSON to a file as well, for compare
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub save: Option<PathBuf>,
    /// Write the time series
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub csv: Option<PathBuf>,
    /// Write a histogram an interval, in the log format of HdrHistogram
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub hdr_log: Option<PathBuf>,
    /// Write a page with plots that needs nothing else
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub report: Option<PathBuf>,
    /// Of the time series; 100ms in runs of up to 10 seconds, else 1s
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = OUTPUT)]
    pub interval: Option<Duration>,
    /// Show no progress
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,
}

/// What can be done with saved results.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Tell what changed between two results, and whether it is more than noise
    Compare {
        /// JSON of the first run
        a: PathBuf,
        /// JSON of the second run
        b: PathBuf,
    },
}

/// [`Arrivals`] as clap shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalsArg {
    /// The same time between any two
    Constant,
    /// Independent of each other
    Poisson,
}

impl BenchArgs {
    /// The plan these arguments ask for. Reads the files that are named.
    ///
    /// # Errors
    /// A file cannot be read, or the arguments do not make sense.
    pub fn plan(&self) -> Result<Plan, LoadError> {
        let (server, wanted) = match &self.urls {
            Some(path) => {
                let (server, wanted) = load::parse_urls(&read_text(path)?)?;
                (server, Some(wanted))
            }
            None => (None, None),
        };
        let url: Url = match (&self.url, server) {
            (Some(url), None) => url.parse()?,
            (None, Some(server)) => server,
            (Some(url), Some(server)) => {
                let url: Url = url.parse()?;
                if url.authority != server.authority {
                    let problem = format!("expected the server {}, got {}", url.authority, server.authority);
                    return Err(LoadError::usage("--urls", problem));
                }
                url
            }
            (None, None) => return Err(LoadError::usage("URL", "expected one, here or in the file of --urls")),
        };
        let body = match (&self.body, &self.body_file) {
            (Some(text), _) => Some(text.clone().into_bytes().into()),
            (None, Some(path)) => Some(read(path)?.into()),
            (None, None) => None,
        };
        let expect_body = match &self.expect_body {
            Some(text) => Some(match text.strip_prefix('@') {
                Some(path) => read(Path::new(path))?.into(),
                None => text.clone().into_bytes().into(),
            }),
            None => None,
        };
        let default_method = if body.is_some() { Method::POST } else { Method::GET };
        let default_duration = self.requests.is_none().then_some(Duration::from_secs(10));
        let duration = self.duration.or(default_duration);
        let is_short = duration.is_none_or(|duration| duration <= Duration::from_secs(10));
        let default_interval = if is_short { Duration::from_millis(100) } else { Duration::from_secs(1) };
        let mut plan = Plan::new(url);
        if let Some(wanted) = wanted {
            plan.wanted = wanted;
        }
        plan.common = Common {
            method: self.method.clone().unwrap_or(default_method),
            headers: self.header.clone(),
            body,
            is_http10: self.http10,
            keep_alive: !self.no_keepalive,
        };
        plan.unix = self.unix.clone();
        plan.connections = self.connections;
        plan.shards = self.threads;
        plan.extent = load::Extent { duration, requests: self.requests };
        plan.warmup = self.warmup;
        plan.model = match self.rate {
            None => Model::Closed,
            Some(rate) => Model::Open {
                rate,
                arrivals: match self.arrivals {
                    ArrivalsArg::Constant => Arrivals::Constant,
                    ArrivalsArg::Poisson => Arrivals::Poisson,
                },
            },
        };
        plan.pipeline = self.pipeline;
        plan.requests_per_connection = if self.no_keepalive { Some(1) } else { self.requests_per_connection };
        plan.batch = self.batch()?;
        plan.connect_timeout = self.connect_timeout.unwrap_or(LOAD_CONNECT_TIMEOUT);
        plan.timeout = self.timeout.unwrap_or(LOAD_REQUEST_TIMEOUT);
        plan.expect_status = self.expect_status.clone();
        plan.expect_body = expect_body;
        plan.interval = self.interval.unwrap_or(default_interval.max(LOAD_INTERVAL_MIN));
        plan.seed = self.seed;
        plan.validate()
    }

    fn batch(&self) -> Result<u64, LoadError> {
        match (self.batch.as_str(), self.requests) {
            ("auto", Some(requests)) => Ok((requests / (self.connections.max(1) as u64) / 4).max(1)),
            ("auto", None) => Err(LoadError::usage("--batch", "expected --requests with auto")),
            (text, _) => text.parse().map_err(|_| LoadError::usage("--batch", "expected a number, or auto")),
        }
    }
}

/// Does what `bench` was asked for, and says it on standard output.
pub fn bench(args: &BenchArgs) -> ExitCode {
    let result = match &args.command {
        Some(BenchCommand::Compare { a, b }) => compare(a, b),
        None => measure(args),
    };
    ExitCode::from(result.unwrap_or_else(|error| {
        eprintln!("everycore bench: {error}");
        if matches!(error, LoadError::Usage { .. }) { exit::USAGE } else { exit::RUNTIME }
    }))
}

fn compare(a: &Path, b: &Path) -> Result<u8, LoadError> {
    let text = report::compare::render(&Report::read(a)?, &Report::read(b)?);
    print(&text)?;
    Ok(exit::OK)
}

fn measure(args: &BenchArgs) -> Result<u8, LoadError> {
    let plan = args.plan()?;
    let stop = Arc::new(AtomicBool::new(false));
    // The first Ctrl-C ends the run with its figures, the second one the process. In this order, or the first
    // would do both.
    signal_hook::flag::register_conditional_default(SIGINT, stop.clone()).map_err(LoadError::Shard)?;
    signal_hook::flag::register(SIGINT, stop.clone()).map_err(LoadError::Shard)?;

    let started = SystemTime::now();
    let mut hdr_log = args.hdr_log.as_ref().map(|path| HdrLog::create(path, started)).transpose()?;
    let mut progress = Progress::new(&plan, args.quiet);
    let mut log_error = None;
    let outcome = load::run(&plan, &stop, &mut |row, figures| {
        progress.show(row);
        if let Some(log) = &mut hdr_log {
            log_error = log_error.take().or(log.write(row, figures).err());
        }
    });
    progress.finish();
    let outcome = outcome?;
    log_error.map_or(Ok(()), Err)?;

    let mut summary = Report::new(&plan, &outcome);
    summary.command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    summary.started_unix_s = started.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let json = summary.to_json();
    print(&if args.json { json.clone() } else { report::text::render(&summary) })?;
    let files = [
        (&args.save, json),
        (&args.csv, report::csv::render(&summary)),
        (&args.report, report::html::render(&summary)),
    ];
    for (path, text) in files {
        if let Some(path) = path {
            fs::write(path, text).map_err(|source| LoadError::File { path: path.clone(), source })?;
        }
    }
    let mut code = if outcome.figures.answers == 0 { exit::RUNTIME } else { exit::OK };
    for threshold in &args.fail_if {
        if let Some(value) = threshold.crossed(&outcome) {
            eprintln!("everycore bench: --fail-if {threshold} holds: {value}");
            code = EXIT_FAIL_IF;
        }
    }
    Ok(code)
}

fn print(text: &str) -> Result<(), LoadError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(LoadError::File { path: "standard output".into(), source: error })
        }
        _ => Ok(()),
    }
}

/// One histogram an interval.
struct HdrLog {
    path: PathBuf,
    file: io::BufWriter<fs::File>,
    started: SystemTime,
    is_begun: bool,
}

impl HdrLog {
    fn create(path: &Path, started: SystemTime) -> Result<HdrLog, LoadError> {
        let file = fs::File::create(path).map_err(|source| LoadError::File { path: path.to_owned(), source })?;
        Ok(HdrLog { path: path.to_owned(), file: io::BufWriter::new(file), started, is_begun: false })
    }

    fn write(&mut self, row: &Row, figures: &Figures) -> Result<(), LoadError> {
        let mut serializer = V2DeflateSerializer::new();
        let mut builder = IntervalLogWriterBuilder::new();
        if !self.is_begun {
            builder.add_comment(concat!("everycore ", env!("CARGO_PKG_VERSION"), ", latencies in ns"));
            builder.with_start_time(self.started).with_base_time(self.started);
            self.is_begun = true;
        }
        builder.with_max_value_divisor(1e6);
        let (at, length) = (Duration::from_secs_f64(row.at_s), Duration::from_secs_f64(row.seconds));
        let failed = |source: io::Error| LoadError::File { path: self.path.clone(), source };
        let mut log = builder.begin_log_with(&mut self.file, &mut serializer).map_err(failed)?;
        log.write_histogram(figures.latency(), at, length, None)
            .map_err(|error| failed(io::Error::other(format!("{error:?}"))))?;
        self.file.flush().map_err(failed)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|source| LoadError::File { path: path.to_owned(), source })
}

fn read_text(path: &Path) -> Result<String, LoadError> {
    fs::read_to_string(path).map_err(|source| LoadError::File { path: path.to_owned(), source })
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let expected = || format!("expected 'Name: value', got {text:?}");
    let (name, value) = text.split_once(':').ok_or_else(expected)?;
    Ok((name.trim().parse().map_err(|_| expected())?, value.trim().parse().map_err(|_| expected())?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(flags: &str) -> Result<Plan, String> {
        let args = std::iter::once("bench").chain(flags.split_whitespace());
        let cli = Cli::try_parse_from(args).map_err(|error| error.to_string())?;
        cli.bench.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_reach_the_plan() {
        let default = plan("http://h/a").unwrap();
        assert_eq!(default.extent, load::Extent { duration: Some(Duration::from_secs(10)), requests: None });
        assert_eq!((default.connections, default.shards, default.pipeline, default.batch), (64, 1, 1, 1));
        assert_eq!(default.interval, Duration::from_millis(100));
        let all = plan(
            "http://h/a -c 100 -t 2 -d 20 -n 4000 --warmup 250ms -R 1000.5 --arrivals poisson -p 3 \
             --requests-per-connection 9 --connect-timeout 1 --timeout 2s --seed 4 -X PUT -H X:1 -H y:2 --body z --http10 \
             --unix /s --expect-status 2xx --expect-body ok",
        )
        .unwrap();
        assert_eq!((all.connections, all.shards, all.pipeline, all.seed), (100, 2, 3, 4));
        assert_eq!(all.extent, load::Extent { duration: Some(Duration::from_secs(20)), requests: Some(4000) });
        assert_eq!(all.model, Model::Open { rate: 1000.5, arrivals: Arrivals::Poisson });
        assert_eq!((all.connect_timeout, all.timeout), (Duration::from_secs(1), Duration::from_secs(2)));
        assert_eq!((all.common.method.as_str(), all.common.headers.len(), all.common.is_http10), ("PUT", 2, true));
        assert_eq!((all.requests_per_connection, all.interval), (Some(9), Duration::from_secs(1)));
        assert_eq!(all.expect_body.as_deref(), Some(&b"ok"[..]));
        assert_eq!(plan("http://h/ --body x").unwrap().common.method, Method::POST);
        let churn = plan("http://h/ --no-keepalive -c 1000 -n 100000 --batch auto").unwrap();
        assert!(churn.is_churn() && !churn.common.keep_alive);
        assert_eq!(churn.batch, 25);
    }

    #[test]
    fn wrong_flags_say_what_was_expected() {
        #[track_caller]
        fn check(flags: &str, expected: &str) {
            let error = plan(flags).unwrap_err();
            assert!(error.contains(expected), "{flags}: {error}");
        }
        check("", "required");
        check("localhost:80", "expected http://host");
        check("http://h/ -c 0", "--connections: expected 1 to");
        check("http://h/ -t 100", "no more than connections");
        check("http://h/ --rate 0", "--rate: expected more than 0");
        check("http://h/ --arrivals poisson", "--rate");
        check("http://h/ -H nocolon", "expected 'Name: value'");
        check("http://h/ --fail-if p99", "expected a condition such as p99>5ms");
        check("http://h/ --expect-status 700", "expected status codes");
        check("http://h/ --no-keepalive -p 2", "--pipeline: expected kept connections");
        check("http://h/ --batch auto", "expected --requests with auto");
        check("http://h/ --body a --body-file b", "cannot be used with");
        check("http://h/ --urls /nonexistent", "/nonexistent: ");
        check("http://h/ -d 5d", "expected a time such as");
    }

    #[test]
    fn compare_takes_two_files() {
        let cli = Cli::try_parse_from(["bench", "compare", "a.json", "b.json"]).unwrap();
        assert!(matches!(cli.bench.command, Some(BenchCommand::Compare { .. })));
        assert!(Cli::try_parse_from(["bench", "compare", "a.json"]).is_err());
    }
}
