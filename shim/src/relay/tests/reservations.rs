//! Reservations that are refused, that wait, and whose client is gone.

use super::*;

#[test]
fn a_refusal_never_reaches_the_stock_shim() {
    let (bench, control, client, stock) =
        Bench::with_client("echo failed no-capacity fgpu: no-capacity: 100% taken");
    send(&client, &create(1, "c1", &bench.bundle("c1")));
    let expected = (1, Code::RESOURCE_EXHAUSTED, "fgpu: no-capacity: 100% taken".to_owned());
    assert_eq!(error_of(&read_frame(&client)), expected);
    send(&client, &state(3, "c1"));
    assert_eq!(read_frame(&stock), state(3, "c1"), "nothing came before it");
    let jobs = bench.end(control, vec![stock]);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
}

#[test]
fn a_reservation_that_dies_gives_back_what_it_may_have() {
    let (bench, control, client, stock) = Bench::with_client("[ $action = fgpu-release ] || kill -9 $$");
    send(&client, &create(1, "c1", &bench.bundle("c1")));
    let (stream, code, message) = error_of(&read_frame(&client));
    assert_eq!((stream, code), (1, Code::INTERNAL));
    assert!(message.starts_with("fgpu: internal: ") && message.contains("SIGKILL"), "{message}");
    assert_eq!(bench.end(control, vec![stock])[1..], ["-namespace ns -id c1 fgpu-release"]);
}

/// What became of the container is not known then: its share stays until the stock shim has ended.
#[test]
fn an_answer_that_is_none_is_not_waited_for() {
    let (bench, control, client, stock) = Bench::with_client(GRANT);
    send(&client, &create(1, "c1", &bench.bundle("c1")));
    let call = bench.stock.recv().unwrap();
    read_frame(&call);
    send(&call, &[0xff; 100]);
    let (stream, code, message) = error_of(&read_frame(&client));
    assert_eq!((stream, code), (1, Code::UNAVAILABLE), "{message}");
    assert_eq!(rest(&call), b"", "nothing more is read of it");
    assert_eq!(bench.end(control, vec![stock])[1..], [format!("-nonce {NONCE} fgpu-release")]);
}

#[test]
fn other_requests_pass_a_reservation_that_waits() {
    let gate = "case $action in fgpu-prepare) read x <${0%/*}/gate; echo granted 0123456789abcdef0123456789abcdef;; esac";
    let (bench, control, client, stock) = Bench::with_client(gate);
    nix::unistd::mkfifo(&bench.at("gate"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let sent = create(1, "c1", &bench.bundle("c1"));
    send(&client, &sent);
    send(&client, &state(3, "c2"));
    assert_eq!(read_frame(&stock), state(3, "c2"));
    // The stock shim is in the middle of a frame when the held request's answer comes.
    let big = done(3, vec![7; 1000]);
    send(&stock, &big[..500]);
    std::fs::write(bench.at("gate"), "go\n").unwrap();
    let call = bench.stock.recv().unwrap();
    assert_eq!(read_frame(&call), sent);
    send(&call, &error_frame(1, Code::UNKNOWN, "runc failed"));
    // The answer may be ready by now, or soon; it may not come before the other frame's end in any case.
    wait_until(|| bench.jobs().len() == 2);
    send(&stock, &big[500..]);
    let mut frames = [read_frame(&client), read_frame(&client)];
    frames.sort_by_key(|frame| frame[7]);
    assert_eq!(error_of(&frames[0]), (1, Code::UNKNOWN, "runc failed".to_owned()));
    assert_eq!(frames[1], big);
    assert_eq!(bench.end(control, vec![stock])[1..], [format!("-nonce {NONCE} fgpu-release")]);
}

#[test]
fn a_container_deleted_while_it_waits_is_never_created() {
    let (bench, control, client, stock) =
        Bench::with_client("case $action in fgpu-prepare) exec sleep 1000;; esac");
    send(&client, &create(1, "c1", &bench.bundle("c1")));
    send(&client, &delete(3, "c1"));
    assert_eq!(read_frame(&stock), delete(3, "c1"));
    send(&stock, &error_frame(3, Code::NOT_FOUND, "not created"));
    let mut errors = [error_of(&read_frame(&client)), error_of(&read_frame(&client))];
    errors.sort_by_key(|error| error.0);
    assert_eq!((errors[0].0, errors[0].1), (1, Code::CANCELLED));
    assert_eq!((errors[1].0, errors[1].1), (3, Code::NOT_FOUND));
    let jobs = bench.end(control, vec![stock]);
    assert_eq!(jobs.last().unwrap(), "-namespace ns -id c1 fgpu-release");
}

/// The stock shim has never heard of the first, and would make the container without its share.
#[test]
fn a_second_create_does_not_pass_the_one_that_waits() {
    let (bench, control, client, stock) =
        Bench::with_client("case $action in fgpu-prepare) exec sleep 1000;; esac");
    send(&client, &create(1, "c1", &bench.bundle("c1")));
    send(&client, &create(3, "c1", &bench.bundle("c1")));
    send(&client, &state(5, "c1"));
    assert_eq!(read_frame(&stock), state(5, "c1"), "nothing came before it");
    let (stream, code, message) = error_of(&read_frame(&client));
    assert_eq!((stream, code, &*message), (3, Code::ALREADY_EXISTS, "fgpu: a create of c1 is under way"));
    drop(client);
    assert_eq!(rest(&stock), b"");
    drop(stock);
    let jobs = bench.end(control, Vec::new());
    assert_eq!(jobs.last().unwrap(), "-namespace ns -id c1 fgpu-release");
}

#[test]
fn a_client_that_is_gone_waits_for_nothing() {
    let (bench, control, client, stock) =
        Bench::with_client("case $action in fgpu-prepare) exec sleep 1000;; esac");
    send(&client, &create(1, "c1", &bench.bundle("c1")));
    send(&client, &state(3, "c1"));
    assert_eq!(read_frame(&stock), state(3, "c1"));
    drop(client);
    assert_eq!(rest(&stock), b"");
    drop(stock);
    let jobs = bench.end(control, Vec::new());
    assert_eq!(jobs.last().unwrap(), "-namespace ns -id c1 fgpu-release");
}

#[test]
fn a_client_that_is_gone_before_its_answer_leaves_nothing_behind() {
    let (bench, control, client, stock) =
        Bench::with_client("echo $$ >$0.pid; case $action in fgpu-prepare) exec sleep 1000;; esac");
    let (other, other_stock) = bench.client();
    send(&client, &create(1, "c1", &bench.bundle("c1")));
    wait_until(|| bench.at("engine.pid").exists());
    drop(client);
    // The answer is due when the release is over: when the relay has reaped its job.
    wait_until(|| bench.jobs().len() == 2);
    let pid = || std::fs::read_to_string(bench.at("engine.pid")).unwrap().trim().to_owned();
    wait_until(|| !pid().is_empty() && !Path::new("/proc").join(pid()).exists());
    // It does one thing after the other, so now it tries.
    send(&other, &state(1, "c1"));
    read_frame(&other_stock);
    // Its connection to the stock shim is closed, although the stock shim has not closed it.
    assert_eq!(rest(&stock), b"");
    // Not at once: a child that another test is starting has it open until its execve(2).
    wait_until(|| (&stock).write(b"anything").is_err());
    bench.end(control, vec![stock, other_stock]);
}

#[test]
fn a_create_is_refused_when_its_time_is_up() {
    let (bench, control, client, stock) =
        Bench::with_client("case $action in fgpu-prepare) exec sleep 1000;; esac");
    let bundle = bench.bundle("c1").to_str().unwrap().to_owned();
    let create = CreateTaskRequest { id: "c1".into(), bundle, ..Default::default() };
    let request = Request {
        service: SERVICES[1].into(),
        method: "Create".into(),
        payload: create.write_to_bytes().unwrap(),
        timeout_nano: 1_000_000,
        ..Default::default()
    };
    send(&client, &frame(MessageHeader::new_request(1, 0), &request.write_to_bytes().unwrap()));
    assert_eq!(error_of(&read_frame(&client)).1, Code::DEADLINE_EXCEEDED);
    bench.end(control, vec![stock]);
}
