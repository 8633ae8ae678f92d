//! The two libraries as the loader sees them.

use std::fs;
use std::path::Path;
use std::process::Command;

use fgpu_quota_names::{Class, TABLE, class_of};
use fgpu_quota_suite::{libraries, run};
use fgpu_wire::Seal;

fn readelf(arguments: &[&str], library: &Path) -> String {
    run(Command::new("readelf").args(arguments).arg(library))
}

/// Names in the dynamic symbol table: undefined ones, or exported ones.
fn names(library: &Path, undefined: bool) -> Vec<String> {
    let table = readelf(&["--dyn-syms", "--wide"], library);
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, _, _, _, "GLOBAL" | "WEAK", _, section, name] = fields[..] else { return None };
            ((section == "UND") == undefined).then(|| name.to_owned())
        })
        .collect();
    names.sort();
    names
}

/// `(TAG)` lines of the dynamic section with that tag.
fn dynamic<'a>(section: &'a str, tag: &str) -> Vec<&'a str> {
    section.lines().filter(|line| line.contains(&format!("({tag})"))).collect()
}

#[test]
fn they_need_the_real_ones_by_absolute_path_and_nothing_else() {
    let expected = [("libcuda.so.1", Seal::unsealed_cuda()), ("libnvidia-ml.so.1", Seal::unsealed_nvml())];
    for (library, (soname, real)) in libraries().iter().zip(expected) {
        let section = readelf(&["--dynamic", "--wide"], library);
        let needed = dynamic(&section, "NEEDED");
        assert_eq!(needed.len(), 1, "{needed:?}");
        assert!(needed[0].ends_with(&format!("[{real}]")), "{needed:?}");
        assert!(dynamic(&section, "SONAME")[0].ends_with(&format!("[{soname}]")));
        let flags = dynamic(&section, "FLAGS_1")[0];
        assert!(flags.contains("NOW") && flags.contains("NODELETE"), "{flags}");
        // No relocation in the text, no run path, and nothing is run at load.
        for absent in ["TEXTREL", "RPATH", "RUNPATH", "INIT", "INIT_ARRAY", "FINI_ARRAY", "VERNEED"] {
            assert!(dynamic(&section, absent).is_empty(), "{absent}");
        }
        assert!(!section.contains("TEXTREL"));
    }
}

/// The loader looks for the path that the host writes into its copy. Nothing else in the file changes.
#[test]
fn a_sealed_copy_needs_the_real_one_where_the_seal_says() {
    let seal = Seal { random: 0xfeed_0000_0000_beef, device: 0x31 };
    for (library, name) in libraries().iter().zip(["cuda", "nvml"]) {
        let before = fs::read(library).unwrap();
        let mut bytes = before.clone();
        seal.apply(&mut bytes).unwrap();
        assert!(before.iter().zip(&bytes).filter(|(a, b)| a != b).count() <= 32);
        let copy = library.with_extension("sealed");
        fs::write(&copy, bytes).unwrap();
        let section = readelf(&["--dynamic", "--wide"], &copy);
        let path = format!("/run/fgpu/driver-feed00000000beef0000000000000031/{name}");
        assert!(dynamic(&section, "NEEDED")[0].ends_with(&format!("[{path}]")), "{section}");
        assert_eq!(Seal::of_path(path.as_bytes()), Some(seal));
        fs::remove_file(&copy).unwrap();
    }
}

#[test]
fn they_want_no_version_of_any_libc() {
    for library in libraries() {
        assert!(!readelf(&["--all", "--wide"], library).contains("GLIBC_"));
        for name in names(library, true) {
            let everywhere = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "dl_iterate_phdr"];
            assert!(everywhere.contains(&name.as_str()), "{name} may not be in every libc");
        }
    }
}

#[test]
fn stack_and_data_are_not_executable_and_there_is_no_thread_local_storage() {
    for library in libraries() {
        let headers = readelf(&["--program-headers", "--wide"], library);
        assert!(headers.contains("GNU_STACK") && headers.contains("GNU_RELRO"));
        assert!(!headers.contains("RWE") && !headers.contains(" TLS "), "{headers}");
    }
}

#[test]
fn they_export_what_they_wrap_and_nothing_else() {
    let [cuda, nvml] = libraries();
    for name in names(cuda, false) {
        let class = class_of(&name);
        assert!(
            !matches!(class, None | Some(Class::Shared | Class::Pass)),
            "{name} is wrapped, and {class:?}"
        );
    }
    let exported = names(cuda, false);
    for (class, listed) in TABLE.iter().filter(|(class, _)| !matches!(class, Class::Shared | Class::Pass)) {
        let missing: Vec<_> =
            listed.iter().filter(|name| !exported.iter().any(|other| other == *name)).collect();
        assert!(missing.is_empty(), "{class:?}: {missing:?}");
    }
    let shown = fgpu_quota_names::nvml::TABLE.iter().filter(|(class, _)| class.is_wrapped());
    let mut wrapped: Vec<&str> = shown.flat_map(|(_, names)| names.iter().copied()).collect();
    wrapped.sort_unstable();
    assert_eq!(names(nvml, false), wrapped);
}
