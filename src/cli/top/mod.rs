//! `everycore top`: a server's shards in the terminal. Floor 8.
//!
//! One thread asks, the other draws and hears keys, so that a server that hangs does not hang the keys.

mod model;
mod view;

use self::model::Model;
use super::{
    args::{TopArgs, exit},
    fetch::Target,
};
use crate::{limits::TOP_INTERVAL_MIN, stats::ServerSnapshot};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::mpsc::{Receiver, sync_channel},
    thread,
    time::Duration,
};

/// How long a key may wait for a look at what was polled.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn run(args: &TopArgs) -> ExitCode {
    let fail = |code, error: &dyn std::fmt::Display| {
        eprintln!("everycore: {error}");
        ExitCode::from(code)
    };
    let target = match Target::new(&args.url, "/__stats?format=json", args.token.clone()) {
        Ok(target) => target,
        Err(error) => return fail(exit::USAGE, &error),
    };
    if !io::stdout().is_terminal() {
        return fail(
            exit::USAGE,
            &"top needs a terminal; for programs there is /__stats?format=json, csv or prometheus",
        );
    }
    let polled = poll(target, args.interval.max(TOP_INTERVAL_MIN));
    let watched = ratatui::try_init().and_then(|terminal| {
        let watched = watch(terminal, &polled, &args.url);
        ratatui::restore();
        watched
    });
    match watched {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => fail(exit::RUNTIME, &error),
    }
}

type Polled = Result<ServerSnapshot, String>;

/// Asks again and again, until nobody listens. The thread ends with the process.
fn poll(target: Target, interval: Duration) -> Receiver<Polled> {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        loop {
            let answer = target.get().map_err(|error| error.to_string());
            let polled =
                answer.and_then(|body| serde_json::from_slice(&body).map_err(|error| format!("no stats: {error}")));
            if sender.send(polled).is_err() {
                return;
            }
            thread::sleep(interval);
        }
    });
    receiver
}

fn watch(mut terminal: DefaultTerminal, polled: &Receiver<Polled>, url: &str) -> io::Result<()> {
    let mut model = Model::default();
    loop {
        terminal.draw(|frame| view::draw(frame, &model, url))?;
        let mut is_new = false;
        while !is_new {
            for answer in polled.try_iter() {
                model.take(answer);
                is_new = true;
            }
            if event::poll(LOOK)? {
                is_new = true;
                let height = terminal.size()?.height.saturating_sub(view::LINES_AROUND);
                if let Event::Key(key) = event::read()?
                    && key.kind == KeyEventKind::Press
                    && !press(&mut model, key, usize::from(height))
                {
                    return Ok(());
                }
            }
        }
    }
}

/// Whether to go on.
fn press(model: &mut Model, key: KeyEvent, height: usize) -> bool {
    let page = isize::try_from(height).unwrap_or(1).max(1);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('p' | ' ') => model.is_paused = !model.is_paused,
        KeyCode::Right | KeyCode::Char('s') => model.sort_by(true),
        KeyCode::Left => model.sort_by(false),
        KeyCode::Char('r') => model.reverse(),
        KeyCode::Up | KeyCode::Char('k') => model.scroll(-1, height),
        KeyCode::Down | KeyCode::Char('j') => model.scroll(1, height),
        KeyCode::PageUp => model.scroll(-page, height),
        KeyCode::PageDown => model.scroll(page, height),
        KeyCode::Home => model.top = 0,
        KeyCode::End => model.scroll(isize::MAX, height),
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::tests::snapshot;

    #[test]
    fn keys_do_what_the_last_line_says() {
        let mut model = Model::default();
        model.take(Ok(snapshot(30, 1)));
        let mut press = |code| super::press(&mut model, KeyEvent::new(code, KeyModifiers::NONE), 10);
        assert!(
            press(KeyCode::Char('p')) && press(KeyCode::Right) && press(KeyCode::Char('r')) && press(KeyCode::PageDown)
        );
        assert!(press(KeyCode::Down) && press(KeyCode::Char('x')));
        assert!(!press(KeyCode::Char('q')) && !press(KeyCode::Esc));
        assert!((model.is_paused, model.is_reversed, model.top) == (true, true, 11));
        assert!(!super::press(&mut model, KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 10));
        super::press(&mut model, KeyEvent::new(KeyCode::End, KeyModifiers::NONE), 10);
        assert_eq!(model.top, 20);
    }
}
