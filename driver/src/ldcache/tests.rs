use super::*;
use crate::fake::ld_cache;

const LIBRARIES: [(&str, &str); 2] =
    [("libcuda.so.1", "/usr/lib/nvidia/libcuda.so.1"), ("libc.so.6", "/lib/libc.so.6")];

fn names(cache: &[u8]) -> Option<Vec<(&str, &str)>> {
    entries(cache).map(|entries| entries.map(|entry| (entry.name, entry.path)).collect())
}

#[test]
fn reads_what_was_written() {
    assert_eq!(names(&ld_cache(&LIBRARIES)), Some(LIBRARIES.to_vec()));
}

#[test]
fn finds_the_paths_of_names_whatever_bytes_they_are() {
    let mut cache = ld_cache(&[
        LIBRARIES[0],
        LIBRARIES[1],
        ("libcuda.so.1", "/opt/X/libcuda.so.1"),
        ("libcuda.so.12", "/no"),
    ]);
    let at = cache.windows(2).position(|window| window == b"X/").unwrap();
    cache[at] = 0xff;
    let names = ["libcuda.so.1", "libm.so.6"];
    let found = paths(&cache, &names, 2).unwrap().unwrap();
    let expected: [(&str, &[u8]); 2] =
        [("libcuda.so.1", b"/usr/lib/nvidia/libcuda.so.1"), ("libcuda.so.1", b"/opt/\xff/libcuda.so.1")];
    assert_eq!(found, expected);
    assert_eq!(paths(&cache, &names, 1), Some(Err(TooMany)));
    assert_eq!(paths(b"ld.so-1.7.0 and no more", &names, 2), None);
}

#[test]
fn skips_an_old_part() {
    for count in 0..4_u32 {
        let mut cache = b"ld.so-1.7.0\0".to_vec();
        cache.extend(count.to_ne_bytes());
        cache.resize((OLD_HEADER + count as usize * OLD_ENTRY).next_multiple_of(8), 0xff);
        cache.extend(ld_cache(&LIBRARIES));
        assert_eq!(names(&cache), Some(LIBRARIES.to_vec()), "{count}");
    }
}

#[test]
fn every_truncation_and_every_flipped_byte_is_survived() {
    let cache = ld_cache(&LIBRARIES);
    for end in 0..cache.len() {
        assert!(names(&cache[..end]).is_none_or(|found| found.len() < 2), "{end}");
    }
    for at in 0..cache.len() {
        let mut bad = cache.clone();
        bad[at] ^= 0xff;
        assert!(names(&bad).is_none_or(|found| found.len() <= 2), "{at}");
    }
}

#[test]
fn a_false_count_reads_no_more_than_there_is() {
    let mut cache = ld_cache(&LIBRARIES);
    cache[NEW_MAGIC.len()..NEW_MAGIC.len() + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert!(names(&cache).unwrap().starts_with(&LIBRARIES));
    let mut old = b"ld.so-1.7.0\0".to_vec();
    old.extend(u32::MAX.to_ne_bytes());
    assert_eq!(names(&old), None);
}

#[test]
fn a_damaged_cache_is_no_cache() {
    assert_eq!(names(b""), None);
    assert_eq!(names(b"\x7fELF"), None);
}

#[test]
fn the_cache_of_this_machine() {
    // A machine of musl or Nix has none.
    let Ok(cache) = std::fs::read("/etc/ld.so.cache") else { return };
    let found = names(&cache).expect("glibc's ldconfig wrote it");
    assert!(
        found.iter().any(|(name, path)| name.starts_with("libc.so.") && path.starts_with('/')),
        "{found:?}"
    );
}
