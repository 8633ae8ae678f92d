//! Where a grant ends.

use super::*;

#[test]
fn the_end_of_the_last_process_is_the_end_of_the_grant() {
    let (bench, control, client, stock) = Bench::with_client(GRANT);
    let mut init = init();
    let cgroup = cgroup_of(init.id());
    std::fs::write(&cgroup, "").unwrap();
    bench.create(&client, init.id());
    wait_until(|| bench.jobs().len() == 2);
    init.kill().unwrap();
    init.wait().unwrap();
    // The first process has ended, others have not. There is no moment at which "never" could be seen; but a
    // relay that did not look at the cgroup would have released before it answered this.
    send(&client, &state(3, "c1"));
    assert_eq!(read_frame(&stock), state(3, "c1"));
    assert_eq!(bench.jobs().len(), 2);
    std::fs::remove_file(&cgroup).unwrap();
    wait_until(|| bench.jobs().len() == 3);
    assert_eq!(bench.jobs()[2], format!("-nonce {NONCE} fgpu-release"));
    bench.end(control, vec![stock]);
}

#[test]
fn a_grant_outlives_the_stock_shim_as_long_as_its_container() {
    let (bench, control, client, stock) = Bench::with_client(GRANT);
    let mut init = init();
    bench.create(&client, init.id());
    let socket = address::front_of(&bench.at("stock"));
    drop((control, stock));
    assert_eq!(rest(&client), b"", "nobody is kept waiting");
    wait_until(|| !socket.exists() && bench.jobs().len() == 2);
    assert!(!bench.relay.is_finished());
    init.kill().unwrap();
    init.wait().unwrap();
    bench.relay.join().unwrap();
    let jobs = std::fs::read_to_string(bench.folder.path().join("jobs")).unwrap();
    assert!(jobs.ends_with("fgpu-release\n"), "{jobs}");
}

#[test]
fn a_restored_container_is_watched_from_its_start() {
    let (bench, control, client, stock) = Bench::with_client(GRANT);
    bench.create(&client, 0);
    let start = StartRequest { id: "c1".into(), ..Default::default() };
    let start = request(3, "Start", start.write_to_bytes().unwrap());
    send(&client, &start);
    assert_eq!(read_frame(&stock), start);
    let mut init = init();
    // `StartResponse` is the same as `CreateTaskResponse` on the wire.
    send(&stock, &created(3, init.id()));
    assert_eq!(read_frame(&client), created(3, init.id()));
    wait_until(|| bench.jobs().len() == 2);
    assert_eq!(bench.jobs()[1], format!("-nonce {NONCE} -pid {} fgpu-activate", init.id()));
    init.kill().unwrap();
    init.wait().unwrap();
    wait_until(|| bench.jobs().len() == 3);
    bench.end(control, vec![stock]);
}
