// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts of guests, for the next start: whoever may restart the daemon, or is there when it
//! is upgraded, shall not get a new one for it, and nobody shall lose what it has saved. One
//! file, written anew as a whole, now and then and at an orderly stop: after a sudden end the
//! next start knows what was true some seconds before.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use demeter_balloon::view::PolicyClock;
use serde::{Deserialize, Serialize};

use crate::policy::Account;
use crate::store;

/// Of the file's form.
const VERSION: u32 = 1;
/// The file is written at most so often: what a guest spends or earns meanwhile is a sixtieth
/// of an account at twice its share.
const PERIOD: Duration = Duration::from_secs(10);

/// By the guests' names.
pub type ByName = BTreeMap<String, Account>;

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    /// Wall clock: no other one goes on while a host is down, and is the same after that.
    unix_ms: u64,
    accounts: BTreeMap<String, KeptAccount>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptAccount {
    credit_ms: u64,
    spent: bool,
}

/// What each version of the file has, whatever else it has.
#[derive(Debug, Deserialize)]
struct Version {
    version: u32,
}

/// Why it cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error("{0}")]
    Form(#[from] serde_json::Error),
    #[error("version {0} of the file, where this daemon knows {VERSION}")]
    Version(u32),
}

#[derive(Debug, Default)]
struct Writing {
    /// When the last attempt began.
    tried: Option<Instant>,
    /// The file names somebody, or is not ours: it is to be written even if there is nobody.
    is_stale: bool,
    /// Why it is not written just now was told.
    is_given_up: bool,
    /// The file could not be read, for a reason that is not its content: it may hold accounts
    /// yet, and is neither moved nor written.
    is_left_alone: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Accounts {
    path: Option<PathBuf>,
    newest: Mutex<ByName>,
    /// Held while the file is written.
    writing: Mutex<Writing>,
}

impl Accounts {
    /// As an earlier daemon left them in that directory; in memory only if there is none.
    /// Time that nobody saw counts as for those who are away, who earn as whoever has nothing.
    /// By the guests' clocks nobody knows how long it was, and none counts.
    ///
    /// A file that cannot be read stops nobody. One that says nothing to us is moved aside, so
    /// that a daemon which knows its version, or a person, can have it back; the next such one
    /// takes its place. One that we may not read, or that is none, stays as it is.
    pub fn open(directory: Option<&Path>, clock: PolicyClock) -> Self {
        Self::open_at(directory, clock, unix_ms())
    }

    fn open_at(directory: Option<&Path>, clock: PolicyClock, now_ms: u64) -> Self {
        let path = directory.map(|directory| directory.join("accounts.json"));
        let mut writing = Writing::default();
        let mut newest = ByName::new();
        if let Some(path) = &path {
            match read(path) {
                Ok(kept) => {
                    writing.is_stale = !kept.accounts.is_empty();
                    newest = left(kept, clock, now_ms);
                }
                Err(ReadError::File(error)) => {
                    writing.is_left_alone = true;
                    tracing::error!(
                        "all guests begin with new accounts, which are not kept: {}: {error}; it is left as it is; next: let the daemon read it, or move it away, and restart the daemon",
                        path.display()
                    );
                }
                Err(error) => writing.is_stale = !move_aside(path, &error),
            }
        }
        Self {
            path,
            newest: Mutex::new(newest),
            writing: Mutex::new(writing),
        }
    }

    /// What is to be written next. New accounts need not be among them.
    pub fn set(&self, accounts: ByName) {
        *self.newest_mut() = accounts;
    }

    /// As of the last decision.
    pub fn newest(&self) -> ByName {
        self.newest_mut().clone()
    }

    fn newest_mut(&self) -> MutexGuard<'_, ByName> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever asks is to write now. Not while somebody is at it: the disk may be slow.
    pub fn is_due(&self, now: Instant) -> bool {
        let mut writing = match self.writing.try_lock() {
            Ok(writing) => writing,
            Err(TryLockError::Poisoned(writing)) => writing.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let is_due = (writing.tried).is_none_or(|tried| now.duration_since(tried) >= PERIOD);
        if is_due {
            writing.tried = Some(now);
        }
        is_due
    }

    /// Writes the file, and waits for the disk. Guests are served without it, too: that it
    /// cannot be written is told once, and it is tried again. It is written where nothing has
    /// changed as well, so that a sudden end does not make time that was seen count twice.
    pub fn write(&self) {
        self.write_at(unix_ms(), false);
    }

    /// The same at an orderly stop: that it was not written is told once more, as it now has
    /// consequences.
    pub fn write_at_stop(&self) {
        self.write_at(unix_ms(), true);
    }

    fn write_at(&self, unix_ms: u64, is_last: bool) {
        let Some(path) = &self.path else {
            return;
        };
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = self.newest();
        if newest.is_empty() && !writing.is_stale {
            return;
        }
        if writing.is_left_alone {
            if is_last {
                tracing::error!(
                    "accounts of guests are not written, and the next start does not know them: {} could not be read, and is left as it is",
                    path.display()
                );
            }
            return;
        }
        let accounts = (newest.iter())
            .map(|(name, account)| (name.clone(), KeptAccount::from(account)))
            .collect();
        let kept = Kept {
            version: VERSION,
            unix_ms,
            accounts,
        };
        match store::write_whole(path, &kept) {
            Ok(()) => {
                writing.is_stale = !newest.is_empty();
                if mem::take(&mut writing.is_given_up) {
                    tracing::info!("accounts of guests are written again");
                }
            }
            Err(error) => {
                if !mem::replace(&mut writing.is_given_up, true) || is_last {
                    tracing::error!("{}", unwritten(path, &error, is_last));
                }
            }
        }
    }
}

/// For the log.
fn unwritten(path: &Path, error: &io::Error, is_last: bool) -> String {
    let path = path.display();
    let next = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "make room in the state directory",
        Some(libc::EACCES | libc::EPERM) => "let the daemon write to the state directory",
        Some(libc::EROFS) => "mount the state directory's file system for writing",
        Some(libc::ENOENT | libc::ENOTDIR) => "make the state directory again",
        Some(libc::EISDIR | libc::ENOTEMPTY | libc::EEXIST) => {
            "move away what has that name, or ends in .new"
        }
        _ => "look after the state directory and its disk",
    };
    match is_last {
        true => format!(
            "accounts of guests are not written, and the next start goes back to those of before: {path}: {error}; next: {next}"
        ),
        false => format!(
            "accounts of guests are not written, and a restart would go back to those of before: {path}: {error}; next: {next}, it is tried again"
        ),
    }
}

impl From<&Account> for KeptAccount {
    fn from(account: &Account) -> Self {
        Self {
            credit_ms: account.credit().as_millis() as u64,
            spent: !account.may_borrow(),
        }
    }
}

/// Nobody has an account yet if there is no file.
fn read(path: &Path) -> Result<Kept, ReadError> {
    let text = match store::read_whole(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Kept {
                version: VERSION,
                unix_ms: 0,
                accounts: BTreeMap::new(),
            });
        }
        Err(error) => return Err(error.into()),
    };
    // First: a later one may have fields that we do not know.
    let Version { version } = serde_json::from_slice(&text)?;
    if version != VERSION {
        return Err(ReadError::Version(version));
    }
    Ok(serde_json::from_slice(&text)?)
}

/// Says so, too. False: it is still there, and is to be overwritten.
fn move_aside(path: &Path, error: &ReadError) -> bool {
    let aside = path.with_extension("unread");
    let moved = fs::rename(path, &aside);
    let becomes = match &moved {
        Ok(()) => format!("it is {} now", aside.display()),
        Err(error) => format!("it cannot be moved away ({error}), and will be overwritten"),
    };
    let path = path.display();
    tracing::error!("all guests begin with new accounts: {path}: {error}; {becomes}");
    moved.is_ok()
}

/// What has become of them since then. The wall clock may have been set: backwards no time has
/// passed, and however far forwards no account has more than it holds.
fn left(kept: Kept, clock: PolicyClock, now_ms: u64) -> ByName {
    let passed = match clock {
        PolicyClock::Host => Duration::from_millis(now_ms.saturating_sub(kept.unix_ms)),
        PolicyClock::Guests => Duration::ZERO,
    };
    let aged = |kept: KeptAccount| {
        let credit = Duration::from_millis(kept.credit_ms);
        let mut account = Account::restored(credit, kept.spent);
        account.earn(passed.as_secs_f64());
        account
    };
    (kept.accounts.into_iter())
        .map(|(name, kept)| (name, aged(kept)))
        .filter(|(_, account)| !account.is_new())
        .collect()
}

fn unix_ms() -> u64 {
    (SystemTime::now().duration_since(UNIX_EPOCH)).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const SECOND_MS: u64 = 1_000;
    const NOW_MS: u64 = 1_700_000_000 * SECOND_MS;
    /// Longer than an account takes to fill.
    const DAY_MS: u64 = 86_400 * SECOND_MS;

    fn spent() -> Account {
        Account::restored(Duration::ZERO, true)
    }

    fn with_credit(seconds: u64) -> Account {
        Account::restored(Duration::from_secs(seconds), false)
    }

    fn open(directory: &Path, now_ms: u64) -> Accounts {
        Accounts::open_at(Some(directory), PolicyClock::Host, now_ms)
    }

    /// What a daemon leaves that ends then.
    fn leave(directory: &Path, accounts: &[(&str, Account)], now_ms: u64) {
        let left = open(directory, now_ms);
        let by_name = (accounts.iter()).map(|&(name, account)| (name.to_owned(), account));
        left.set(by_name.collect());
        left.write_at(now_ms, false);
    }

    fn found(directory: &Path, now_ms: u64) -> ByName {
        open(directory, now_ms).newest()
    }

    #[test]
    fn the_next_start_finds_what_was_spent_and_what_was_saved() {
        let directory = tempfile::tempdir().unwrap();
        assert!(found(directory.path(), NOW_MS).is_empty());
        leave(
            directory.path(),
            &[("a", spent()), ("b", with_credit(300))],
            NOW_MS,
        );
        let accounts = found(directory.path(), NOW_MS);
        assert_eq!(accounts["a"], spent());
        assert_eq!(accounts["b"], with_credit(300));
        // Of which nothing is left to know.
        leave(directory.path(), &[], NOW_MS);
        assert!(found(directory.path(), NOW_MS).is_empty());
        assert!(directory.path().join("accounts.json").exists());
    }

    #[test]
    fn time_without_a_daemon_is_earned_as_by_those_who_are_away() {
        let directory = tempfile::tempdir().unwrap();
        leave(
            directory.path(),
            &[("a", spent()), ("b", with_credit(500))],
            NOW_MS,
        );
        let after = |ms: u64| found(directory.path(), NOW_MS + ms);
        assert!(!after(59 * SECOND_MS)["a"].may_borrow());
        assert!(after(61 * SECOND_MS)["a"].may_borrow());
        assert_eq!(after(61 * SECOND_MS)["b"], with_credit(561));
        // As new ones, which nobody needs to remember.
        assert_eq!(after(599 * SECOND_MS).len(), 1);
        assert!(after(600 * SECOND_MS).is_empty());
        // By the guests' clocks it may have been no time at all.
        let clock = PolicyClock::Guests;
        let theirs = Accounts::open_at(Some(directory.path()), clock, NOW_MS + DAY_MS);
        assert_eq!(theirs.newest()["b"], with_credit(500));
    }

    #[test]
    fn a_wall_clock_that_was_set_takes_nothing_away_and_fills_an_account_at_most() {
        let directory = tempfile::tempdir().unwrap();
        let left = [("a", spent()), ("b", with_credit(300))];
        leave(directory.path(), &left, NOW_MS);
        for earlier_ms in [0, NOW_MS - DAY_MS, NOW_MS - 1] {
            let accounts = found(directory.path(), earlier_ms);
            assert_eq!(accounts["a"], spent());
            assert_eq!(accounts["b"], with_credit(300));
        }
        for later_ms in [NOW_MS + DAY_MS, u64::MAX] {
            assert!(found(directory.path(), later_ms).is_empty());
        }
        // The other way round: it was wrong when they were left.
        leave(directory.path(), &left, u64::MAX);
        assert_eq!(found(directory.path(), NOW_MS)["b"], with_credit(300));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_moved_aside_and_all_accounts_are_new() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("accounts.json");
        let aside = directory.path().join("accounts.unread");
        leave(directory.path(), &[("a", spent())], NOW_MS);
        let whole = fs::read_to_string(&path).unwrap();
        let later = whole.replace("\"version\": 1", "\"version\": 2, \"more\": []");
        let mut texts = vec![
            String::new(),
            "{}".into(),
            "\u{0}".repeat(whole.len()),
            later,
            whole.replace("\"credit_ms\": 0", "\"credit_ms\": -1"),
            whole.replace("\"spent\": true", "\"spent\": \"\u{e4}\""),
            whole.replace("\"spent\"", "\"spend\""),
        ];
        // Cut short anywhere before the end of its last line.
        texts.extend((0..whole.trim_end().len()).map(|at| whole[..at].to_owned()));
        for text in texts {
            fs::write(&path, &text).unwrap();
            assert!(found(directory.path(), NOW_MS).is_empty(), "{text}");
            assert!(!path.exists(), "{text}");
            assert_eq!(fs::read_to_string(&aside).unwrap(), text);
        }
        // From there on as ever.
        leave(directory.path(), &[("b", spent())], NOW_MS);
        assert_eq!(found(directory.path(), NOW_MS)["b"], spent());
        // It cannot be moved: overwritten, even by the word that there is nobody.
        fs::write(&path, "nonsense").unwrap();
        fs::remove_file(&aside).unwrap();
        fs::create_dir_all(aside.join("full")).unwrap();
        leave(directory.path(), &[], NOW_MS);
        assert!(read(&path).is_ok_and(|kept| kept.unix_ms == NOW_MS));
    }

    #[test]
    fn what_we_may_not_read_or_is_no_file_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("accounts.json");
        let aside = directory.path().join("accounts.unread");
        let makes: [fn(&Path); 3] = [
            |path| {
                let made = std::process::Command::new("mkfifo").arg(path).status();
                assert!(made.unwrap().success());
            },
            // Root may read every file; this one nobody can.
            |path| std::os::unix::fs::symlink(path, path).unwrap(),
            |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        ];
        for make in makes {
            make(&path);
            let before = path.symlink_metadata().unwrap();
            let accounts = open(directory.path(), NOW_MS);
            assert!(accounts.newest().is_empty());
            accounts.set([("a".to_owned(), spent())].into());
            accounts.write_at(NOW_MS, false);
            accounts.write_at(NOW_MS, true);
            let after = path.symlink_metadata().unwrap();
            assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
            assert!(aside.symlink_metadata().is_err());
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn what_to_do_fits_what_failed() {
        let told = |errno, is_last| {
            let error = io::Error::from_raw_os_error(errno);
            unwritten(Path::new("/s/accounts.json"), &error, is_last)
        };
        for (errno, next) in [
            (libc::ENOSPC, "make room in"),
            (libc::EDQUOT, "make room in"),
            (libc::EROFS, "mount"),
            (libc::EACCES, "let the daemon write"),
            (libc::EISDIR, "move away"),
            (libc::EIO, "look after"),
        ] {
            let (goes_on, last) = (told(errno, false), told(errno, true));
            assert!(goes_on.contains(&format!("; next: {next}")), "{goes_on}");
            assert!(goes_on.ends_with(", it is tried again"), "{goes_on}");
            assert!(last.contains("the next start goes back"), "{last}");
            assert!(!last.contains("tried again"), "{last}");
        }
    }

    #[test]
    fn no_account_of_a_file_has_more_than_one_holds() {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "{{\"version\": 1, \"unix_ms\": {NOW_MS}, \"accounts\": {{\
             \"a\": {{\"credit_ms\": {}, \"spent\": true}},\
             \"b\": {{\"credit_ms\": 0, \"spent\": false}}}}}}",
            u64::MAX
        );
        fs::write(directory.path().join("accounts.json"), text).unwrap();
        let accounts = found(directory.path(), NOW_MS);
        assert!(!accounts.contains_key("a"));
        assert!(!accounts["b"].may_borrow());
    }

    /// `/dev/full` answers every write as a full disk does.
    #[test]
    fn a_full_disk_is_told_once_and_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        leave(directory.path(), &[("a", with_credit(300))], NOW_MS);
        let accounts = open(directory.path(), NOW_MS);
        accounts.set([("a".to_owned(), spent())].into());
        let fresh = directory.path().join("accounts.new");
        for _ in 0..3 {
            std::os::unix::fs::symlink("/dev/full", &fresh).unwrap();
            accounts.write_at(NOW_MS, false);
            assert!(accounts.writing.lock().unwrap().is_given_up);
            // What was begun takes no room; what was there before is there.
            assert!(fresh.symlink_metadata().is_err());
            assert_eq!(found(directory.path(), NOW_MS)["a"], with_credit(300));
        }
        accounts.write_at(NOW_MS, false);
        assert!(!accounts.writing.lock().unwrap().is_given_up);
        assert_eq!(found(directory.path(), NOW_MS)["a"], spent());
    }

    #[test]
    fn the_file_is_written_seldom_and_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let accounts = open(directory.path(), NOW_MS);
        let now = Instant::now();
        assert!(accounts.is_due(now));
        assert!(!accounts.is_due(now + PERIOD - Duration::from_millis(1)));
        let writes = accounts.writing.lock().unwrap();
        assert!(!accounts.is_due(now + PERIOD));
        drop(writes);
        assert!(accounts.is_due(now + PERIOD));
        // While nobody has spent anything there is nothing to write.
        accounts.write_at(NOW_MS, false);
        assert!(!directory.path().join("accounts.json").exists());
        let nowhere = Accounts::open(None, PolicyClock::Host);
        nowhere.set([("a".to_owned(), spent())].into());
        nowhere.write();
    }
}
