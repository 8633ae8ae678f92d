//! A lane for each context, however many there are.

use crate::limiter::Lanes;

#[test]
fn each_of_two_hundred_contexts_has_a_lane_of_its_own() {
    // SAFETY: zeros are the beginning.
    let lanes = unsafe { Box::<Lanes>::new_zeroed().assume_init() };
    let at = |number: usize| 0x1000 + number * 0x100;
    let mut opened: Vec<_> = (0..200)
        .map(|number| {
            assert!(lanes.find(at(number)).is_none());
            let (lane, gpu) = lanes.open(at(number), number % 4).expect("there is memory");
            assert_eq!(gpu, number % 4);
            core::ptr::from_ref(lane)
        })
        .collect();
    for (number, &lane) in opened.iter().enumerate() {
        let found = lanes.find(at(number)).expect("open");
        assert!(core::ptr::eq(found.0, lane) && found.1 == number % 4);
        assert!(core::ptr::eq(lanes.open(at(number), 7).expect("open").0, lane));
    }
    opened.sort();
    opened.dedup();
    assert_eq!(opened.len(), 200);
}
