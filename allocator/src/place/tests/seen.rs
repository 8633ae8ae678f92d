//! What is seen of the GPUs: memory of others, lost GPUs.

use super::*;

#[test]
fn memory_that_others_hold_is_not_free() {
    let mut table = Table::new(&[80 * GIB; 2]);
    let uuids: Vec<_> = table.inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let outsiders = vec![Outsider { pid: 123, name: "python".into() }];
    let seen = Seen { uuid: uuids[0].clone(), foreign: 8 * GIB + 1, outsiders, ..Seen::default() };
    table.rules.seen.insert(uuids[0].clone(), seen);
    // Less than a byte of it is not granted, either.
    let of = |memory| Request { memory: MemoryAsk::Bytes(memory), cores_ppm: 1, ..fraction(1) };
    assert_eq!(table.put(&of(72 * GIB)).unwrap(), [1]);
    assert_eq!(table.put(&of(72 * GIB - 1)).unwrap(), [0]);
    let error = table.error(&of(9 * GIB));
    assert_eq!(error.code, Code::NoCapacity);
    let said = "8193 MiB of GPU 0 is held by processes outside fgpu: pid 123 python";
    assert!(error.message.contains(said), "{error}");
    // Nor is such a GPU empty.
    let mut table = Table { held: vec![Held::default(); 2], ..table };
    let alone = Request { policy: Policy::Exclusive, ..of(GIB) };
    assert_eq!(table.put(&alone).unwrap(), [1]);
    assert_eq!(table.error(&alone).code, Code::NoCapacity);
    // A request for the whole of it fits as soon as they are gone.
    table.rules.seen.clear();
    assert_eq!(table.put(&of(80 * GIB)).unwrap(), [0]);
}

#[test]
fn a_gpu_that_is_lost_serves_nothing() {
    let mut table = Table::new(&[80 * GIB; 2]);
    let uuid = table.inventory.gpus[0].uuid.clone();
    let lost = Seen { uuid: uuid.clone(), unhealthy: Some("it is lost".into()), ..Seen::default() };
    table.rules.seen.insert(uuid, lost);
    for _ in 0..2 {
        assert_eq!(table.put(&fraction(500_000)).unwrap(), [1]);
    }
    assert_eq!(table.error(&fraction(500_000)).code, Code::NoCapacity, "the other one may become free");
    for request in [
        Request { device: Filter { any: vec!["0".into()], not: vec![] }, ..fraction(1_000) },
        Request { count: 2, ..fraction(1_000) },
    ] {
        let error = table.error(&request);
        assert_eq!(error.code, Code::GpuUnhealthy, "{error}");
        assert!(error.message.contains("GPU 0 cannot be used: it is lost; reset it"), "{error}");
    }
    // What no GPU of the node could ever serve is not the lost one's fault.
    assert_eq!(table.error(&Request { count: 3, ..fraction(1_000) }).code, Code::TooLarge);
}
