//! For the build scripts of libraries that take another library's place.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Makes the crate's cdylib bear the name `soname` and need the library at the absolute path `real`, and
/// nothing else. `real` need not exist: the linker writes into `DT_NEEDED` the SONAME of what it was given,
/// so it is given an empty library whose SONAME is that path.
pub fn in_place_of(soname: &str, real: &str) {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = out.join("empty.c");
    let stub = out.join("libreal.so");
    fs::write(&source, "").unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let compiler =
        ["RUSTC_LINKER", "CC"].iter().find_map(env::var_os).unwrap_or_else(|| OsString::from("cc"));
    let status = Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-o"])
        .arg(&stub)
        .arg(format!("-Wl,-soname,{real}"))
        .arg(&source)
        .status()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.to_string_lossy()));
    assert!(status.success(), "{} failed on an empty library", compiler.to_string_lossy());

    for argument in [
        "-nostdlib".to_owned(),
        "-nostartfiles".to_owned(),
        format!("-Wl,-soname,{soname}"),
        "-Wl,--no-as-needed".to_owned(),
        stub.display().to_string(),
        // Bound at load, so that nothing is looked up for the first time while a lock is held; never
        // unloaded, since the driver and cudart keep pointers to our functions.
        "-Wl,-z,now,-z,relro,-z,nodelete,-z,noexecstack".to_owned(),
        // Our own references mean our own functions, whatever the application defines.
        "-Wl,-Bsymbolic".to_owned(),
        "-Wl,-z,text".to_owned(),
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
