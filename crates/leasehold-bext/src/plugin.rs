//! The plugin: each method of `LockingPlugin` is one call to the store.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use bext_plugin_api::locking::{LockHandle, LockingPlugin};
use leasehold::backend::Renewed;
use leasehold::blocking::Locks;
use leasehold::{Error, Lease, Mode, Result};
use parking_lot::Mutex;

use crate::handle;
use crate::kept::Kept;
use crate::options::PluginOptions;

/// bext's `LockingPlugin` on a leasehold store with a ttl.
///
/// All methods block and may be called from any thread, inside or outside of a Tokio runtime. Without
/// [`keep_alive`](PluginOptions::keep_alive) the plugin remembers nothing about its locks: a handle can be used by
/// another plugin, in another process, on the same store. A handle is a secret, because it is all that a release needs.
///
/// - `try_lock` makes one attempt. `Ok(None)` means that another owner holds the key, and nothing else: a store that
///   is broken, silent or too busy is an `Err`, after [`request_timeout`](leasehold::Options::request_timeout) (5 s)
///   at the latest. A ttl of 0 or beyond the store's limit, and a key that is empty or has more than 512 bytes, is an
///   `Err` before anything is sent.
/// - `renew` sets the ttl anew. It is an `Err` if the lock is gone, even if the key is still free.
/// - `release` of a lock that is gone is `Ok` and changes nothing. While the store does not answer it is tried again
///   for [`release_timeout`](leasehold::Options::release_timeout) (5 s); the `Err` then means that the lock ends with
///   its ttl.
/// - `cleanup` lets go of the store. It releases no lock, because the work under it may still be going on: each ends
///   with its ttl. Later calls of the other methods are `Err`.
pub struct LeaseholdPlugin {
    name: String,
    options: PluginOptions,
    /// Whether `cleanup` may close the client: nothing else uses it.
    owns_client: bool,
    /// `None` after `cleanup`.
    live: Mutex<Option<Live>>,
}

struct Live {
    // Dropped first: the client ends after all its guards.
    kept: Kept,
    locks: Locks,
}

impl LeaseholdPlugin {
    /// Opens a store by its URL, as [`Locks::connect`] does.
    ///
    /// # Errors
    /// Those of [`Locks::connect`] and of [`new`](LeaseholdPlugin::new).
    ///
    /// # Examples
    ///
    /// ```
    /// use bext_plugin_api::locking::LockingPlugin as _;
    /// use leasehold_bext::{LeaseholdPlugin, PluginOptions};
    ///
    /// // In production redis://…, postgres://…, or the URL of a leasehold server.
    /// let plugin = LeaseholdPlugin::connect("memory:", PluginOptions::default())?;
    /// if let Some(handle) = plugin.try_lock("reports/nightly", 30_000)? {
    ///     // Nobody else holds the key now.
    ///     plugin.renew(&handle)?;
    ///     plugin.release(handle)?;
    /// }
    /// plugin.cleanup()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(url: &str, options: PluginOptions) -> Result<Self> {
        let plugin = LeaseholdPlugin::new(Locks::connect(url)?, options)?;
        Ok(LeaseholdPlugin { owns_client: true, ..plugin })
    }

    /// Makes a plugin of a client, with the client's namespace, owner label and timeouts. `cleanup` does not close
    /// that client.
    ///
    /// # Errors
    /// `Unsupported` if the store has no ttl, or cannot do what the options ask for; `InvalidArgument` for a bad
    /// option. Nothing is sent.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use leasehold::backends::memory::Memory;
    /// use leasehold_bext::{LeaseholdPlugin, PluginOptions};
    ///
    /// let builder = leasehold::Locks::builder(Arc::new(Memory::new()));
    /// let client = builder.namespace("bext").owner("web-3").request_timeout(Duration::from_secs(2)).build();
    /// let plugin = LeaseholdPlugin::new(client, PluginOptions::default())?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn new(client: impl Into<Locks>, options: PluginOptions) -> Result<Self> {
        let locks: Locks = client.into();
        let info = locks.info();
        options.check(&info)?;
        let name = options.label(&info);
        let live = Mutex::new(Some(Live { kept: Kept::default(), locks }));
        Ok(LeaseholdPlugin { name, options, owns_client: false, live })
    }

    fn locks(&self) -> std::result::Result<Locks, String> {
        self.live.lock().as_ref().map(|live| live.locks.clone()).ok_or_else(cleaned_up)
    }

    /// Acquires a lock and renews it from then on.
    fn lock_and_keep(
        &self,
        locks: &Locks,
        key: &str,
        ttl: Duration,
        max_hold: Duration,
    ) -> std::result::Result<Option<String>, String> {
        let mutex = locks.mutex(key).ttl(ttl).max_hold(max_hold.max(ttl));
        let Some(guard) = mutex.try_lock().map_err(text)? else { return Ok(None) };
        let lock_id = handle::lock_id(guard.lease_id(), guard.fence());
        match self.live.lock().as_mut() {
            Some(live) => live.kept.add(guard),
            // The guard is dropped, which releases the lock: the host will not get its handle.
            None => return Err(cleaned_up()),
        }
        Ok(Some(lock_id))
    }
}

impl LockingPlugin for LeaseholdPlugin {
    fn name(&self) -> &str {
        &self.name
    }

    fn try_lock(&self, key: &str, ttl_ms: u64) -> std::result::Result<Option<LockHandle>, String> {
        let locks = self.locks()?;
        let ttl = Duration::from_millis(ttl_ms);
        let lock_id = match self.options.keep_alive {
            Some(max_hold) => self.lock_and_keep(&locks, key, ttl, max_hold)?,
            None => {
                let lease = locks.leasing(key).ttl(ttl).try_acquire().map_err(text)?;
                lease.map(|lease| handle::lock_id(lease.id, lease.fence))
            }
        };
        Ok(lock_id.map(|lock_id| LockHandle { key: key.to_owned(), lock_id, ttl_ms }))
    }

    fn renew(&self, handle: &LockHandle) -> std::result::Result<(), String> {
        let locks = self.locks()?;
        let lease =
            lease(&locks, handle).ok_or("the handle is not from a leasehold plugin: the lock is not held")?;
        match locks.renew(&lease).map_err(text)? {
            Renewed::Held(_) => Ok(()),
            Renewed::Gone(gone) => Err(format!("the lock is no longer held: {}", gone.as_str())),
            _ => Err("the lock is no longer held".into()),
        }
    }

    fn release(&self, handle: LockHandle) -> std::result::Result<(), String> {
        let locks = self.locks()?;
        // What this crate did not grant, nobody holds by this handle.
        let Some(lease) = lease(&locks, &handle) else { return Ok(()) };
        if let Some(live) = self.live.lock().as_mut() {
            live.kept.stop(&lease);
        }
        let released = match self.options.min_hold {
            Duration::ZERO => locks.release(&lease),
            stays => locks.release_after(&lease, stays),
        };
        released.map(drop).map_err(text)
    }

    fn cleanup(&self) -> std::result::Result<(), String> {
        let live = self.live.lock().take();
        if let Some(Live { kept, locks }) = live {
            drop(kept);
            if self.owns_client {
                // Sends what failed attempts have to give back.
                locks.close();
            }
        }
        Ok(())
    }
}

impl fmt::Debug for LeaseholdPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseholdPlugin")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The lease of a handle; `None` if this crate did not make the handle.
fn lease(locks: &Locks, handle: &LockHandle) -> Option<Lease> {
    let (id, fence) = handle::parse(&handle.lock_id)?;
    let name = locks.name(&handle.key).ok()?;
    let owner = locks.options().owner.clone();
    Some(Lease::new(name, id, Mode::Exclusive, fence, owner, Duration::from_millis(handle.ttl_ms)))
}

fn cleaned_up() -> String {
    "the locking plugin was cleaned up: make a new one".into()
}

/// An error and its causes on one line. They contain neither names nor lease ids.
fn text(error: Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
