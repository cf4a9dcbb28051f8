//! Prints a simulated history for people.

use std::fmt;

use super::SimRun;
use crate::history::record::{Fault, Kind, Mode};

impl fmt::Display for SimRun {
    /// One line for each record, in the order of time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.setting.seed, self.setting.configuration)?;
        let mut records = self.histories.concat();
        records.sort_by_key(|record| record.at);
        let since = |at: u64| (at as f64 - self.setting.span.0 as f64) / 1e6;
        for record in records {
            let kind = record.kind;
            write!(f, "{:>14.6} ms  {:>3}.{} ", since(record.at), record.worker, record.task)?;
            write!(f, "claim {:<4} lock {} {kind:?}", record.claim, record.name)?;
            if record.mode != Mode::Exclusive {
                write!(f, " {:?}", record.mode)?;
            }
            if record.fault != Fault::None && kind != Kind::FencedWrite {
                write!(f, " {:?}", record.fault)?;
            }
            if record.lease != 0 {
                write!(f, ", lease {:04x}", record.lease & 0xffff)?;
            }
            if record.fence != 0 {
                write!(f, ", fence {}", record.fence)?;
            }
            match kind {
                Kind::AcquireCall => write!(f, ", ttl {:.3} ms", record.deadline as f64 / 1e6)?,
                _ if record.deadline > 1 => write!(f, ", until {:.6} ms", since(record.deadline))?,
                _ => {}
            }
            match kind {
                Kind::AcquireCall | Kind::RenewCall => write!(f, ", {:.3} ms", record.value as f64 / 1e6)?,
                _ if record.value != 0 => write!(f, ", {}", record.value)?,
                _ => {}
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
