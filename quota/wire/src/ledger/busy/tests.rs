use super::*;

const MS: u64 = 1_000_000;

#[test]
fn every_reader_gets_the_recent_use() {
    // Whenever the machine was started.
    for start in [0, 7, NUMBER - 1, NUMBER, NUMBER + 1, 5 * NUMBER].map(|number| number * WINDOW) {
        let busy = Busy::new();
        assert_eq!(busy.ppm(start + 77 * MS), 0);
        // 30 of every 100 ms, for two seconds.
        for round in 10..30 {
            busy.add(start + (round * 100 + 30) * MS, 30 * MS);
        }
        for late in [0, 20, 60] {
            let ppm = busy.ppm(start + (2930 + late) * MS);
            assert!((280_000..=350_000).contains(&ppm), "{start} {late}: {ppm}");
        }
        // Then less and less, and nothing.
        let later = [3050, 3200, 3600, 60_000].map(|at| busy.ppm(start + at * MS));
        assert!(later[0] > later[1] && later[1] > 0 && later[2..] == [0, 0], "{later:?}");
    }
}

#[test]
fn it_is_never_more_than_a_whole_gpu() {
    let busy = Busy::new();
    busy.add(10_000 * MS, 900 * MS);
    assert_eq!(busy.ppm(10_000 * MS), 1_000_000);
    for _ in 0..5000 {
        busy.add(10_400 * MS, u64::MAX);
    }
    assert_eq!(busy.ppm(10_400 * MS), 1_000_000);
}

#[test]
fn a_late_sample_replaces_no_newer_one() {
    let busy = Busy::new();
    busy.add(20_100 * MS, 50 * MS);
    busy.add(19_900 * MS, 50 * MS);
    assert_eq!(busy.ppm(20_100 * MS), 200_000);
}

#[test]
fn any_word_has_a_meaning() {
    for word in [u64::MAX, NUMBER << 40, TIME, TIME << 20, 1 << 63] {
        for now in [0, 1, WINDOW - 1, WINDOW, NUMBER * WINDOW, u64::MAX] {
            let busy = Busy(AtomicU64::new(word));
            assert!(busy.ppm(now) <= 1_000_000);
            busy.add(now, u64::MAX);
            assert!(busy.ppm(now) <= 1_000_000);
        }
    }
}
