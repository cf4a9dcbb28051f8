//! Passes the library's warnings on to the user: risks in the store's setup, and failures in the background.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// Events of one lease, which the command that holds it reports in its own words.
const OF_LEASES: &str = "leasehold::lease";

/// Warnings that may wait for a slow reader; more are dropped.
const WAITING: usize = 64;

/// How long a command's end waits for unread warnings.
const PARTING: Duration = Duration::from_millis(200);

/// Risks in a store's setup, which the library logs for some stores. `run` examines every store by itself.
const OF_SETUP: &str = "leasehold::doctor";

/// Passes every warning on, as one line. `tell` must not block: a renewal may be what warns.
pub(crate) fn hear(tell: impl Fn(String) + Send + Sync + 'static) {
    hear_except(&[OF_LEASES], tell);
}

fn hear_except(except: &'static [&'static str], tell: impl Fn(String) + Send + Sync + 'static) {
    let heard = tracing_subscriber::registry().with(Heard { except, tell });
    // A second call in one process would change nothing; there is none.
    let _ = tracing::subscriber::set_global_default(heard);
}

/// Prints warnings on a separate thread, so that a blocked reader of stderr delays nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Aside(SyncSender<Message>);

#[derive(Debug)]
enum Message {
    Warning(String),
    /// Its receiver is disconnected when every warning before it has been printed.
    End(SyncSender<()>),
}

impl Aside {
    /// Prints every warning of the library from now on. If no thread can be started, prints none.
    pub(crate) fn hear(tell: impl Fn(&str) + Send + 'static) -> Self {
        let (sender, receiver) = sync_channel(WAITING);
        let listen = move |receiver: Receiver<Message>| {
            for message in receiver {
                match message {
                    Message::Warning(line) => tell(&line),
                    Message::End(ended) => drop(ended),
                }
            }
        };
        if std::thread::Builder::new().name("warnings".into()).spawn(move || listen(receiver)).is_ok() {
            let sender = sender.clone();
            hear_except(&[OF_LEASES, OF_SETUP], move |line| drop(sender.try_send(Message::Warning(line))));
        }
        Aside(sender)
    }

    /// Prints this line too.
    pub(crate) fn tell(&self, line: String) {
        drop(self.0.try_send(Message::Warning(line)));
    }

    /// Waits briefly until all warnings are printed.
    pub(crate) fn finish(&self) {
        let (sender, ended) = sync_channel(0);
        if self.0.try_send(Message::End(sender)).is_ok() {
            let _ = ended.recv_timeout(PARTING);
        }
    }
}

struct Heard<T> {
    /// Targets of events that are dropped.
    except: &'static [&'static str],
    tell: T,
}

impl<S: Subscriber, T: Fn(String) + Send + Sync + 'static> Layer<S> for Heard<T> {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let ours = metadata.target().starts_with("leasehold") && !self.except.contains(&metadata.target());
        ours && *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        (self.tell)(line.message + &line.rest);
    }
}

/// The message first, then its fields.
#[derive(Default)]
struct Line {
    message: String,
    rest: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            // The error text needs no field name.
            "error" => self.rest.push_str(&format!(": {value:?}")),
            name => self.rest.push_str(&format!(", {name} {value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn a_warning_is_one_line_and_the_rest_is_dropped() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&lines);
        let heard = tracing_subscriber::registry();
        let heard = heard.with(Heard { except: &[OF_LEASES], tell: move |line| told.lock().push(line) });
        tracing::subscriber::with_default(heard, || {
            let error = std::io::Error::other("it is away");
            tracing::warn!(target: "leasehold::backends", %error, node = "b", "no wake-ups for now");
            tracing::info!(target: "leasehold::backends", "all is well");
            tracing::warn!(target: "leasehold::lease", "lease lost");
            tracing::warn!(target: "other", "not ours");
        });
        assert_eq!(*lines.lock(), ["no wake-ups for now: it is away, node b"]);
    }
}
