//! Two builds on one directory: what a newer leasehold has written is refused, when opening and name by name.

use std::fs;

use leasehold::backends::file::Directory;
use leasehold::{ErrorKind, GuardState};

use crate::files::file;
use crate::process::{TempDir, open};

/// Where the layout of the whole directory is said.
const LAYOUT: &str = "leasehold-layout";

#[test]
fn a_directory_of_a_newer_layout_is_refused() {
    let temp = TempDir::new();
    let layout = temp.path().join(LAYOUT);
    assert!(Directory::open(temp.path()).is_ok());
    assert!(!layout.exists());
    fs::write(&layout, "2\n").unwrap();
    assert!(Directory::open(temp.path()).is_ok());
    fs::write(&layout, "3\n").unwrap();
    let error = Directory::open(temp.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("layout 3") && error.message().contains("update"), "{error}");
    for strange in ["", "three\n", "-1\n"] {
        fs::write(&layout, strange).unwrap();
        assert_eq!(Directory::open(temp.path()).unwrap_err().kind(), ErrorKind::Internal, "{strange:?}");
    }
}

#[tokio::test]
async fn a_name_of_a_newer_layout_is_left_as_it_is() {
    let temp = TempDir::new();
    let locks = open(&temp.locks());
    let guard = locks.mutex("x").lock().await.unwrap();
    let meta = file(&temp.locks(), "meta");
    let newer = fs::read_to_string(&meta).unwrap().replace("leasehold 2", "leasehold 3") + "more\n";
    fs::write(&meta, &newer).unwrap();
    // What was held before can still be released.
    assert_eq!(guard.release().await.unwrap(), GuardState::Released);
    let refused = |error: leasehold::Error| {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.message().contains("newer") && error.message().contains("update"), "{error}");
    };
    refused(locks.mutex("x").try_lock().await.unwrap_err());
    refused(locks.inspect("x").await.unwrap_err());
    // The other names go on.
    let _other = locks.mutex("y").lock().await.unwrap();
    assert_eq!(locks.sweep().await.unwrap().held, 1);
    assert_eq!(fs::read_to_string(&meta).unwrap(), newer);
}
