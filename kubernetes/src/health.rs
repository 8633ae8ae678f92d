//! How the node's GPUs are, for the kubelet, which shows it in the status of pods.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use fgpu_engine::claims::inventory;
use fgpu_engine::config::Config;
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::devices::Offer;
use crate::plugin::Plugin;
use crate::proto::{DeviceHealth, DeviceIdentifier, Empty, Health, Healths};
use crate::serve::unknown;

/// How often the kubelet is told. After 30 s without news it takes a device for unknown.
const TELL: Duration = Duration::from_secs(10);

/// `v1alpha1.DRAResourceHealth`.
#[derive(Debug, Clone)]
pub struct Healthy {
    /// Whose node it is.
    pub plugin: Arc<Plugin>,
}

impl NamedService for Healthy {
    const NAME: &'static str = "v1alpha1.DRAResourceHealth";
}

impl Service<http::Request<Body>> for Healthy {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: http::Request<Body>) -> Self::Future {
        let watch = Watch(self.plugin.node.clone());
        Box::pin(async move {
            match call.uri().path() {
                "/v1alpha1.DRAResourceHealth/NodeWatchResources" => {
                    let codec = ProstCodec::<Healths, Empty>::default();
                    Ok(Grpc::new(codec).server_streaming(watch, call).await)
                }
                other => Ok(unknown(other)),
            }
        })
    }
}

/// A stream of what is seen, for the node of that name.
struct Watch(String);

impl ServerStreamingService<Empty> for Watch {
    type Response = Healths;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Healths, Status>> + Send>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, _: Request<Empty>) -> Self::Future {
        let node = self.0.clone();
        let looks = IntervalStream::new(tokio::time::interval(TELL));
        let seen = looks.then(move |_| {
            let node = node.clone();
            async move {
                let looked = tokio::task::spawn_blocking(move || look(&node)).await;
                looked.unwrap_or_else(|error| Err(error.to_string())).map_err(Status::unavailable)
            }
        });
        Box::pin(async move { Ok(Response::new(Box::pin(seen) as Self::ResponseStream)) })
    }
}

fn look(node: &str) -> Result<Healths, String> {
    let config = Config::load().map_err(|error| error.to_string())?;
    let inventory = inventory(&config).map_err(|error| error.to_string())?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let rules = config.rules();
    let offer = Offer { inventory: &inventory, reserve: config.reserve_memory, seen: &rules.seen };
    let all = offer.devices(|_| true).devices;
    let one = |device: k8s_openapi::api::resource::v1::Device| {
        let sick = device.taints.is_some();
        DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: node.to_owned(), device_name: device.name }),
            health: if sick { Health::Unhealthy } else { Health::Healthy }.into(),
            last_updated_time: i64::try_from(now).unwrap_or(i64::MAX),
            health_check_timeout_seconds: 0,
            message: if sick {
                "the driver has lost it; fgpu doctor says more".into()
            } else {
                String::new()
            },
        }
    };
    Ok(Healths { devices: all.into_iter().map(one).collect() })
}
