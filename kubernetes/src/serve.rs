//! gRPC on unix sockets: what the kubelet calls.
//!
//! The two services are small, and kept by hand: no protoc is needed to build.

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::net::UnixListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tracing::{error, info};

use crate::authority::mended;
use crate::plugin::Plugin;
use crate::proto::{Claims, Empty, PluginInfo, Prepared, RegistrationStatus, Unprepared};
use crate::sockets::Sockets;

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Makes a folder that only root may enter, or makes it so.
///
/// # Errors
/// It cannot be made.
pub fn private(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
}

/// Opens a socket that only root may use. What a former process left is replaced.
///
/// # Errors
/// The socket cannot be made.
pub fn listen(path: &Path) -> std::io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves on a socket, until it fails.
///
/// # Errors
/// The socket fails.
pub async fn serve(listener: UnixListener, services: Routes) -> Result<(), tonic::transport::Error> {
    let incoming = UnixListenerStream::new(listener).map(|connection| connection.map(mended));
    tonic::transport::Server::builder().add_routes(services).serve_with_incoming(incoming).await
}

/// Answers one call.
async fn unary<In, Out, F, Fut>(
    call: http::Request<Body>,
    answer: F,
) -> Result<http::Response<Body>, Infallible>
where
    In: prost::Message + Default + Send + 'static,
    Out: prost::Message + Default + Send + 'static,
    F: FnMut(In) -> Fut + Send + Sync,
    Fut: Future<Output = Out> + Send + 'static,
{
    struct Method<F, In>(F, PhantomData<fn(In)>);
    impl<F, Fut, In, Out> UnaryService<In> for Method<F, In>
    where
        F: FnMut(In) -> Fut,
        Fut: Future<Output = Out> + Send + 'static,
    {
        type Response = Out;
        type Future = Answer<Result<Response<Out>, Status>>;

        fn call(&mut self, request: Request<In>) -> Self::Future {
            let answer = (self.0)(request.into_inner());
            Box::pin(async { Ok(Response::new(answer.await)) })
        }
    }
    Ok(Grpc::new(ProstCodec::<Out, In>::default()).unary(Method(answer, PhantomData), call).await)
}

/// The answer to a call of no service of ours.
pub fn unknown(path: &str) -> http::Response<Body> {
    Status::unimplemented(format!("fgpu-dra has no {path}")).into_http()
}

/// `pluginregistration.Registration`: the kubelet asks who we are, and says what it makes of it.
#[derive(Debug, Clone)]
pub struct Registration {
    /// What is answered.
    pub info: Arc<PluginInfo>,
    /// Where it is answered.
    pub sockets: Arc<Sockets>,
}

impl NamedService for Registration {
    const NAME: &'static str = "pluginregistration.Registration";
}

impl Service<http::Request<Body>> for Registration {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: http::Request<Body>) -> Self::Future {
        let (info, sockets) = (self.info.clone(), self.sockets.clone());
        Box::pin(async move {
            match call.uri().path() {
                "/pluginregistration.Registration/GetInfo" => {
                    unary(call, move |_: Empty| std::future::ready(PluginInfo::clone(&info))).await
                }
                "/pluginregistration.Registration/NotifyRegistrationStatus" => {
                    unary(call, move |status: RegistrationStatus| {
                        match status.plugin_registered {
                            true => {
                                info!("the kubelet knows us");
                                sockets.remove_others();
                            }
                            false => error!("the kubelet does not take us: {}", status.error),
                        }
                        std::future::ready(Empty {})
                    })
                    .await
                }
                other => Ok(unknown(other)),
            }
        })
    }
}

/// `k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin`.
#[derive(Debug, Clone)]
pub struct Dra {
    /// What does it.
    pub plugin: Arc<Plugin>,
}

impl NamedService for Dra {
    const NAME: &'static str = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";
}

impl Service<http::Request<Body>> for Dra {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: http::Request<Body>) -> Self::Future {
        let plugin = self.plugin.clone();
        Box::pin(async move {
            match call.uri().path() {
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources" => {
                    unary(call, move |claims: Claims| {
                        let plugin = plugin.clone();
                        async move { Prepared { claims: plugin.prepare(claims.claims).await } }
                    })
                    .await
                }
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources" => {
                    unary(call, move |claims: Claims| {
                        let plugin = plugin.clone();
                        async move { Unprepared { claims: plugin.unprepare(claims.claims).await } }
                    })
                    .await
                }
                other => Ok(unknown(other)),
            }
        })
    }
}
