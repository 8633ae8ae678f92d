use super::*;
use crate::{Key, Process, State};
use fgpu_spec::{Compute, Grant, GrantedGpu, Tier};

fn boot() -> Boot {
    Boot::new("11111111-2222-3333-4444-555555555555".into())
}

fn sample(n: u8) -> Lease {
    let gpu = |uuid: &str| GrantedGpu { uuid: uuid.into(), memory: 20 << 30, cores_ppm: 250_000, mig: None };
    Lease {
        key: Key { namespace: "mo\"by".into(), id: format!("id\\{n}") },
        grant: Grant {
            nonce: Nonce([n; 16]),
            tier: Tier::Quota,
            compute: Compute::Cap,
            gpus: vec![gpu("GPU-a"), gpu("GPU-\"b\\")],
            notes: vec!["a \"note\"\n".into()],
        },
        state: State::Active,
        owner: (n.is_multiple_of(2)).then(|| "alice".into()),
        exclusive: n.is_multiple_of(3),
        bundle: "/run/bundle".into(),
        maker: Process { pid: 1, start: 2 },
        pid_namespace: n.is_multiple_of(2).then_some(0xeffffffc),
        pid_file: Some("/run/bundle/init.pid".into()),
        init: Some(Process { pid: 3, start: 4 }),
        cgroup: Some("/docker/x".into()),
        created: u64::MAX,
        wall: 1,
        request: "fgpu/fraction=0.25".into(),
        trouble: None,
        kept: None,
        anchor: None,
        joined: Vec::new(),
    }
}

fn file(leases: &[Lease]) -> Vec<u8> {
    let lines: Vec<_> = leases.iter().map(|lease| line(lease, &boot()).unwrap()).collect();
    Draft::new(&boot(), lines.iter().map(Vec::as_slice)).concat()
}

#[test]
fn leases_come_back_and_the_file_is_json_with_one_per_line() {
    for count in 0..4 {
        let leases: Vec<_> = (0..count).map(sample).collect();
        let bytes = file(&leases);
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["leases"].as_array().unwrap().len(), leases.len());
        assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), leases.len() + 2);
        let image = Image::parse(bytes, &boot()).unwrap();
        assert_eq!(image.lines().map(|line| lease(line).unwrap()).collect::<Vec<_>>(), leases);
    }
}

#[test]
fn the_scanner_agrees_with_the_parser() {
    for n in 0..6 {
        let lease = sample(n);
        let line = line(&lease, &boot()).unwrap();
        let summary = Summary::scan(&line).unwrap();
        assert_eq!(summary.exclusive, lease.exclusive);
        assert_eq!(summary.owner.map(<[u8]>::to_vec), lease.owner.as_deref().map(quoted));
        assert!(summary.rest.starts_with(&key_head(&lease.key)));
        assert_eq!(summary.gpus.len(), 2);
        for (part, gpu) in summary.gpus.iter().zip(&lease.grant.gpus) {
            assert_eq!(part.uuid, quoted(&gpu.uuid));
            assert_eq!((part.memory, part.cores_ppm), (gpu.memory, gpu.cores_ppm));
        }
    }
}

#[test]
fn every_flipped_byte_and_every_cut_is_noticed() {
    let bytes = file(&[sample(1), sample(2)]);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(Image::parse(bad, &boot()).is_err(), "byte {at}");
        assert!(Image::parse(bytes[..at].to_vec(), &boot()).is_err(), "cut at {at}");
    }
}

#[test]
fn another_version_is_told_from_damage() {
    let bytes = file(&[]);
    let newer = String::from_utf8(bytes).unwrap().replacen(":1,", ":27,", 1);
    assert_eq!(Image::parse(newer.into_bytes(), &boot()).unwrap_err(), Damage::Version(27));
    assert_eq!(Image::parse(Vec::new(), &boot()).unwrap_err(), Damage::Torn);
}

#[test]
fn leases_of_another_boot_are_void() {
    let other = Boot::new("11111111-2222-3333-4444-555555555556".into());
    let image = Image::parse(file(&[sample(1)]), &other).unwrap();
    assert_eq!(image.lines().count(), 0);
    assert_eq!(image.void_lines().count(), 1);
    assert!(image.find(&Nonce([1; 16])).is_none());
    let rewritten = Image::parse(image.rewrite(&other, |_| Edit::Keep, None).concat(), &other).unwrap();
    assert_eq!(rewritten.lines().count() + rewritten.void_lines().count(), 0);
}

#[test]
fn salvage_keeps_whole_lines_of_this_boot_only() {
    let bytes = file(&[sample(1), sample(2), sample(3)]);
    let at = bytes.iter().position(|&byte| byte == b'2').unwrap();
    let second = bytes.windows(4).position(|window| window == b"0202").unwrap();
    let mut bad = bytes.clone();
    bad[at] ^= 1;
    bad[second] ^= 1;
    let (whole, damaged) = salvage(&bad, &boot());
    let nonces: Vec<_> = whole.iter().map(|line| lease(line).unwrap().grant.nonce).collect();
    assert_eq!(nonces, [Nonce([1; 16]), Nonce([3; 16])]);
    assert_eq!(damaged, 1);
    assert_eq!(salvage(&bytes[..bytes.len() - 40], &boot()).0.len(), 2);
    let other = Boot::new("11111111-2222-3333-4444-555555555556".into());
    assert_eq!(salvage(&bytes, &other), (vec![], 3));
}

#[test]
fn rewrite_drops_replaces_and_appends() {
    let image = Image::parse(file(&[sample(1), sample(2)]), &boot()).unwrap();
    let third = line(&sample(3), &boot()).unwrap();
    let edited = |edits: [Edit<'_>; 2], more| {
        let mut edits = edits.into_iter();
        image.rewrite(&boot(), |_| edits.next().unwrap(), more).concat()
    };
    let third = Some(&*third);
    assert_eq!(edited([Edit::Drop, Edit::Keep], third), file(&[sample(2), sample(3)]));
    assert_eq!(edited([Edit::Keep, Edit::Drop], None), file(&[sample(1)]));
    assert_eq!(edited([Edit::Keep, Edit::Keep], third), file(&[sample(1), sample(2), sample(3)]));
    assert_eq!(edited([Edit::Drop, Edit::Drop], None), file(&[]));
    let other = line(&sample(4), &boot()).unwrap();
    assert_eq!(edited([Edit::Replace(&other), Edit::Keep], None), file(&[sample(4), sample(2)]));
    assert_eq!(edited([Edit::Keep, Edit::Replace(&other)], third), file(&[sample(1), sample(4), sample(3)]));
}
