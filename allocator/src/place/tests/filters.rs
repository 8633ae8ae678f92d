//! Which GPUs may serve a request.

use super::*;

fn never(device: &str) -> Filter {
    Filter { any: vec![], not: vec![device.into()] }
}

#[test]
fn device_and_model_filters() {
    let mut table = Table::new(&[80 * GIB; 3]);
    table.inventory.gpus[1].model = "NVIDIA A100-SXM4-40GB".into();
    let chosen = |device: Filter, model: Filter| {
        let decision = table.decide(&Request { device, model, count: 1, ..fraction(1_000) });
        decision.outcome.map(|placement| placement.gpus[0].uuid.clone())
    };
    let any = Filter::default;
    assert_eq!(chosen(only("2"), any()).unwrap(), "GPU-2");
    assert_eq!(chosen(only("gpu-2"), any()).unwrap(), "GPU-2");
    assert_eq!(chosen(never("0"), any()).unwrap(), "GPU-1");
    assert_eq!(chosen(never("GPU-0"), never("a100")).unwrap(), "GPU-2");
    assert_eq!(chosen(any(), only("a100")).unwrap(), "GPU-1");
    assert_eq!(
        chosen(Filter { any: vec!["0".into(), "1".into()], not: vec!["0".into()] }, any()).unwrap(),
        "GPU-1"
    );
    assert_eq!(chosen(only("GPU"), any()).unwrap_err(), Refusal::NoGpu, "a UUID is matched whole");
    assert_eq!(chosen(only("7"), any()).unwrap_err(), Refusal::NoGpu);
    let error = table.error(&Request { model: only("b200"), device: never("0"), ..fraction(1) });
    assert_eq!(
        error.to_string(),
        "fgpu: no-gpu: fgpu/fraction=0.000001: no GPU matches: GPU 0 (NVIDIA H100 80GB HBM3, GPU-0) is not in \
         fgpu/device, GPU 1 (NVIDIA A100-SXM4-40GB, GPU-1) is not in fgpu/model, GPU 2 (NVIDIA H100 80GB HBM3, \
         GPU-2) is not in fgpu/model; see fgpu inventory"
    );
}
