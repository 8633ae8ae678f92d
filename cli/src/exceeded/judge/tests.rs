use super::*;

const GIB: u64 = 1 << 30;
const A: Nonce = Nonce([1; 16]);
const B: Nonce = Nonce([2; 16]);

fn limits() -> Vec<Limit> {
    let limit = |lease, gpu: &str, context| Limit { lease, gpu: gpu.into(), granted: 10 * GIB, context };
    let measured = Some(GIB / 2);
    vec![limit(A, "0", measured), limit(A, "1", measured), limit(B, "0", None)]
}

fn used(lease: Nonce, gpu: &str, sizes: &[u64]) -> Vec<Use> {
    let one = |(pid, bytes): (usize, &u64)| Use { lease, gpu: gpu.into(), pid: pid as u32, bytes: *bytes };
    sizes.iter().enumerate().map(one).collect()
}

#[test]
fn use_within_grant_contexts_and_margin_is_not_reported() {
    let most = 10 * GIB + MARGIN;
    for uses in [
        vec![],
        used(A, "0", &[10 * GIB]),
        used(A, "0", &[most + GIB / 2]),
        used(A, "1", &[most, GIB]),
        used(A, "0", &[most / 4; 4]),
        used(B, "0", &[most + CONTEXT]),
        // Of a GPU that is not in its grant nothing is known to judge it by.
        used(B, "1", &[80 * GIB]),
        [used(A, "0", &[9 * GIB]), used(B, "0", &[9 * GIB]), used(A, "1", &[9 * GIB])].concat(),
    ] {
        let mut judge = Judge::default();
        for _ in 0..10 {
            assert_eq!(judge.sample(&limits(), &uses), Verdict::default(), "{uses:?}");
        }
    }
}

#[test]
fn the_third_sample_in_a_row_is_new_and_once() {
    for uses in [
        used(A, "0", &[12 * GIB]),
        used(A, "1", &[10 * GIB + GIB / 2 + MARGIN + 1]),
        used(A, "0", &[4 * GIB; 4]),
        [used(A, "0", &[12 * GIB]), used(A, "1", &[12 * GIB])].concat(),
    ] {
        let mut judge = Judge::default();
        for _ in 0..2 {
            assert_eq!(judge.sample(&limits(), &uses), Verdict::default());
        }
        assert_eq!(judge.sample(&limits(), &uses), Verdict { above: vec![A], new: vec![A] });
        for _ in 0..3 {
            assert_eq!(judge.sample(&limits(), &uses), Verdict { above: vec![A], new: vec![] });
        }
    }
}

#[test]
fn a_sample_below_begins_anew() {
    let mut judge = Judge::default();
    let (over, under) = (used(A, "0", &[12 * GIB]), used(A, "0", &[GIB]));
    let many = [&over, &over, &under, &over, &over, &over, &under];
    let new: Vec<_> = many.iter().map(|uses| judge.sample(&limits(), uses).new.len()).collect();
    assert_eq!(new, [0, 0, 0, 0, 0, 1, 0]);
    // And so does a share that grows.
    let mut grown = limits();
    grown[0].granted = 20 * GIB;
    judge.sample(&limits(), &over);
    judge.sample(&limits(), &over);
    assert_eq!(judge.sample(&grown, &over), Verdict::default());
}

#[test]
fn a_share_that_is_made_smaller_than_what_is_in_use_ends_nobody() {
    let mut judge = Judge::default();
    let mut limits = limits();
    let in_use = used(A, "0", &[10 * GIB]);
    judge.sample(&limits, &in_use);
    limits[0].granted = 2 * GIB;
    for _ in 0..10 {
        assert_eq!(judge.sample(&limits, &in_use), Verdict::default());
    }
    // Less than before, and then more than the new share: that is taken anew.
    judge.sample(&limits, &used(A, "0", &[GIB]));
    let again: Vec<_> = (0..3).map(|_| judge.sample(&limits, &used(A, "0", &[5 * GIB])).new.len()).collect();
    assert_eq!(again, [0, 0, 1]);
    // And above the former share is above.
    let mut judge = Judge::default();
    limits[0].granted = 10 * GIB;
    judge.sample(&limits, &in_use);
    limits[0].granted = 2 * GIB;
    let more: Vec<_> = (0..3).map(|_| judge.sample(&limits, &used(A, "0", &[12 * GIB])).new.len()).collect();
    assert_eq!(more, [0, 0, 1]);
}
