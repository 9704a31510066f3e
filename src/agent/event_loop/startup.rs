//! Start of the agent, in the order that keeps forwarding: store or cache, registration of the host, kernel
//! dump, speaker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tortie_bgp::Family;
use tortie_config::counted;

use super::applied_requests::AppliedRequests;
use super::error::AgentError;
use super::kernel_thread::KernelThread;
use super::options::AgentOptions;
use super::speaker_thread::SpeakerThread;
use super::timers::Timers;
use super::{Agent, Fact};
use crate::agent::api::server::Server;
use crate::agent::api::status;
use crate::agent::config::ModeChoice;
use crate::agent::controllers::{Controllers, register_node};
use crate::agent::core::Core;
use crate::agent::core::input::Input;
use crate::agent::core::options::CoreOptions;
use crate::agent::core::view::CoreView;
use crate::agent::handle::Handle;
use crate::agent::health::probe;
use crate::agent::http;
use crate::agent::journal::Journal;
use crate::agent::metrics;
use crate::agent::observe::{self, Observer};
use crate::agent::process::{host, namespace, systemd};
use crate::agent::{logging, time};
use crate::api::machine::Machine;
use crate::api::status::ProtectionStatus;
use crate::host_checks::Disk;
use crate::plugins::{attach, docker};
use crate::speaker::{self, SpeakerOptions};
use tortie_engine::model::{AttachedRoute, watch_scope, workload_routes};
use tortie_engine::routing::NodeOptions;
use tortie_kernel::{Marks, Mode, Namespaces, ToKernel};
use tortie_store::{Feed, FeedOptions, Store, StoreError};

/// Restart time in the Graceful Restart capability (RFC 4724).
const RESTART_TIME: Duration = Duration::from_secs(120);

impl Agent {
    pub(super) async fn start(
        options: AgentOptions,
        logs: logging::Logs,
        io: tokio::runtime::Handle,
        (namespaces, protections): (Namespaces, ProtectionStatus),
    ) -> Result<Self, AgentError> {
        let now = Instant::now();
        if options.writes() {
            namespace::claim(&io, &options.node).await.map_err(AgentError::NamespaceTaken)?;
        }
        let machine = Machine::of_agent(&options.settings.cache_path());
        let url = options.store.clone();
        let store = io.spawn(async move { tortie_store::open(&url).await }).await.map_err(task_error)??;
        let store_requests = Arc::new(tortie_store::Requests::default());
        let store: Arc<dyn Store> = Arc::new(tortie_store::Metered::new(store, Arc::clone(&store_requests)));
        let (requests_sender, requests) = mpsc::channel(1_024);
        let protocol =
            options.settings.route_protocol.unwrap_or(tortie_kernel::Options::new(Mode::Off).marks.protocol);
        let observes = options.observes();
        let process = (protections, namespaces.clone());
        let handle = Handle::new(&options.node, machine.clone(), process, now, requests_sender, observes);
        let handle = Arc::new(handle);
        let observer = observes.then(|| {
            let sockets = &options.settings.bird_socket;
            Arc::new(Observer::new(Arc::clone(&handle), Arc::clone(&store), sockets, protocol))
        });
        let exporter = metrics::Exporter::new(
            Arc::clone(&handle),
            observer.clone(),
            store_requests,
            if options.is_sqlite() { "sqlite" } else { "etcd" },
            options.settings.metrics_per_peer.unwrap_or_default(),
            protocol,
        );
        let writes = options.writes();
        let core_options = CoreOptions {
            name: options.node.clone(),
            node: NodeOptions {
                store: host::store_addresses(&options.store.url),
                connected: host::connected(writes),
                ..host::node_options(&options.settings)
            },
            observes,
            data_model: options.store.data_model,
            kernel_writes: writes,
            policy: mode(options.settings.policy()),
        };
        let started = time::now();
        let core = Core::new(&core_options, started);
        let journal = Journal::start(core_options, started)
            .map_err(|error| AgentError::System("start the thread of the journal", error))?;
        let server = Server::new(
            Arc::clone(&handle),
            protocol,
            Arc::clone(&store),
            observer.clone(),
            exporter,
            journal.clone(),
        );
        let server = Arc::new(server);
        serve_api(&options, &server, &io).await?;
        let docker = match options.settings.docker(&options.node, &options.socket) {
            Some(drivers) => {
                let _io = io.enter();
                let drivers = docker::Options { namespaces: namespaces.clone(), ..drivers };
                Some(docker::serve(Arc::clone(&store), drivers)?)
            }
            None => None,
        };
        let mut notify = systemd::Notify::new(systemd::is_managed());
        notify.mirror(&io, move || {
            let server = Arc::clone(&server);
            async move { status::status(&server).await }
        });
        tracing::info!(target: "tortie", "tortie {} starts as {} on {}", env!("CARGO_PKG_VERSION"), options.node, store.describe());
        let what = FeedOptions {
            prefixes: watch_scope(&options.node, options.store.data_model),
            cache: Some(options.settings.cache_path()),
            data_model: options.store.data_model,
        };
        let feed = Feed::start(&io, Arc::clone(&store), what);
        let (facts_sender, facts) = mpsc::unbounded_channel();
        let reports = facts_sender.clone();
        let report = move |input| drop(reports.send(Fact::Core(input)));
        let host = (namespaces.clone(), options.settings.mtu_file());
        let controllers = Controllers::start(&io, &store, (&options.node, &machine), writes, host, report);
        let low_port = options.settings.bgp_listen.iter().any(probe::is_low);
        let found = facts_sender.clone();
        let report = move |problems| drop(found.send(Fact::Core(Input::HostChecks(problems))));
        let files = Disk::files(&options.store.url, options.settings.cache_path());
        probe::start(&io, Arc::clone(&handle), report, low_port, files);
        if let Some(observer) = &observer {
            observe::start(&io, Arc::clone(observer));
        }
        let attached = attached(&io, writes).await;
        let mut agent = Self {
            options,
            core,
            journal,
            handle,
            observer,
            store,
            io,
            logs,
            kernel: KernelThread::default(),
            speaker: SpeakerThread::default(),
            feed,
            facts,
            facts_sender,
            requests,
            applied_requests: AppliedRequests::default(),
            controllers,
            registered: false,
            cluster_requested: false,
            attached: attached.clone(),
            start_refused: None,
            notify,
            stopping: false,
            timers: Timers::default(),
            stations: crate::agent::bmp::BmpStations::default(),
            docker,
        };
        agent.input(Input::Attached(attached));
        Ok(agent)
    }

    /// Handles the first complete snapshot: registers the host unless another host has its address, then
    /// starts the kernel thread.
    pub(super) fn on_loaded(&mut self) {
        if CoreView::of(&self.core).runs_from_cache() || !self.options.writes() {
            self.start_kernel();
            return;
        }
        self.register();
    }

    pub(super) fn start_kernel(&mut self) {
        if self.kernel.is_started() {
            return;
        }
        let settings = &self.options.settings;
        let mut options = tortie_kernel::Options::new(mode(settings.kernel()));
        options.policy = mode(settings.policy());
        let marks = options.marks;
        options.marks = Marks {
            protocol: settings.route_protocol.unwrap_or(marks.protocol),
            metric: settings.route_metric.unwrap_or(marks.metric),
            ..marks
        };
        let facts = self.facts_sender.clone();
        let sink = Box::new(move |fact| {
            let _ = facts.send(Fact::Core(Input::Kernel(fact)));
        });
        match tortie_kernel::spawn(&options, sink) {
            Ok(handle) => {
                self.handle.kernel().started(handle.sender());
                self.handle.set_drops(handle.drops());
                self.kernel.on_start(handle);
            }
            Err(error) => {
                tracing::error!(target: "tortie", "the kernel thread cannot start: {error}");
                std::process::exit(71);
            }
        }
    }

    /// Starts the speaker. `v4` and `v6` are the numbers of own routes that the kernel kept; zero of both
    /// means that there is no learned route to preserve. Peers keep their routes to workloads that the kernel
    /// forwards to all the same.
    pub(super) fn start_speaker(&mut self, v4: usize, v6: usize) {
        if self.options.observes() {
            // In observe mode sessions and port belong to BIRD.
            self.input(Input::NoSessions);
            return;
        }
        let there = |[v4, v6]: [usize; 2]| -> Vec<Family> {
            let found = [(v4, Family::Ipv4Unicast), (v6, Family::Ipv6Unicast)];
            found.iter().filter(|(n, _)| *n > 0).map(|(_, family)| *family).collect()
        };
        let families = there([v4, v6]);
        let attached = std::mem::take(&mut self.attached);
        let forwarding = there(workload_routes(CoreView::of(&self.core).model(), &attached));
        if families.is_empty() {
            self.input(Input::NoSessions);
            self.kernel.send(ToKernel::SweepStale);
        }
        let options = SpeakerOptions {
            listen: self.options.settings.bgp_listen.clone(),
            kernel: self.options.settings.kernel() != ModeChoice::Off,
            restarting: (!families.is_empty()).then_some(families),
            forwarding,
            restart_time: RESTART_TIME,
            ..SpeakerOptions::default()
        };
        let facts = self.facts_sender.clone();
        let sink = Box::new(move |fact| {
            let _ = facts.send(Fact::Core(Input::Speaker(fact)));
        });
        let Some(kernel) = self.kernel.sender() else { return };
        let learned = Box::new(move |batch| match kernel.try_send(ToKernel::Learned(batch)) {
            Err(
                TrySendError::Full(ToKernel::Learned(batch))
                | TrySendError::Disconnected(ToKernel::Learned(batch)),
            ) => Err(batch),
            _ => Ok(()),
        });
        match speaker::spawn(options, sink, learned) {
            Ok((handle, thread)) => {
                self.handle.speaker().started(handle.clone());
                for effect in self.speaker.on_start(handle, thread) {
                    self.carry_out_one(effect);
                }
            }
            Err(error) => {
                tracing::error!(target: "tortie", "the speaker thread cannot start: {error}");
                std::process::exit(71);
            }
        }
    }

    /// Creates what says that the store is ready.
    pub(super) fn create_cluster(&mut self) {
        if std::mem::replace(&mut self.cluster_requested, true) {
            return;
        }
        let store = Arc::clone(&self.store);
        self.io.spawn(async move { register_node::create_cluster(&*store).await });
    }

    /// Registers the host if the store lacks its keys, unless another running host has its address.
    pub(super) fn register(&mut self) {
        if self.registered || CoreView::of(&self.core).runs_from_cache() || !self.options.writes() {
            return;
        }
        self.registered = true;
        let (node, settings) = (self.options.node.clone(), self.options.settings.clone());
        let address_conflicts = self.core.address_conflicts();
        let machine = self.handle.machine().clone();
        let (store, facts) = (Arc::clone(&self.store), self.facts_sender.clone());
        self.io.spawn(async move {
            let twin = attach::twin(&*store, &node, &machine).await.ok().flatten().map(AgentError::Twin);
            let taken = register_node::running_conflict(&*store, &address_conflicts).await;
            let checked = match twin.or(taken.map(AgentError::Taken)) {
                Some(error) => Err(error),
                None => {
                    let name = node.clone();
                    let read = tokio::task::spawn_blocking(move || host::registration(&name, &settings));
                    let done = match read.await {
                        Ok(registration) => register_node::register(&*store, &registration).await,
                        Err(error) => Err(StoreError::Unreachable(error.to_string()).into()),
                    };
                    match done {
                        Ok(0) => {}
                        Ok(keys) => {
                            tracing::info!(target: "tortie", "this host is registered in the store: {} \
                                                              written", counted(keys, "key"));
                        }
                        Err(error) => {
                            tracing::warn!(target: "tortie", "this host cannot be registered in the store: \
                                                              {error}")
                        }
                    }
                    Ok(())
                }
            };
            let _ = facts.send(Fact::StartAllowed(checked));
        });
    }
}

/// Returns the endpoint routes on this host, for an agent that could remove them.
async fn attached(io: &tokio::runtime::Handle, writes: bool) -> Vec<AttachedRoute> {
    if !writes {
        return Vec::new();
    }
    let read = io.spawn_blocking(tortie_kernel::attached_routes).await;
    read.map_err(std::io::Error::other).and_then(|read| read).unwrap_or_else(|error| {
        tracing::warn!(target: "tortie", "the workloads attached to this host cannot be read: {error}");
        Vec::new()
    })
}

fn mode(extent: ModeChoice) -> Mode {
    match extent {
        ModeChoice::Program => Mode::Program,
        ModeChoice::Observe => Mode::Observe,
        ModeChoice::Off => Mode::Off,
    }
}

async fn serve_api(
    options: &AgentOptions,
    server: &Arc<Server>,
    io: &tokio::runtime::Handle,
) -> Result<(), AgentError> {
    // A predecessor that was just killed may hold the socket for a moment.
    for _ in 0..20 {
        if std::os::unix::net::UnixStream::connect(&options.socket).is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let unix = io.spawn(http::serve_unix(options.socket.clone(), Arc::clone(server)));
    let tcp = options.settings.http().map(|addr: SocketAddr| {
        let (names, shared) = (options.settings.http_host.clone(), Arc::clone(server));
        io.spawn(async move { http::serve_tcp(addr, &names, shared).await })
    });
    let pages = options.settings.metrics_compat.iter().map(|compat| {
        let (names, shared) = (options.settings.http_host.clone(), Arc::clone(server));
        let (addr, page) = (compat.addr, compat.page.into());
        io.spawn(async move { http::serve_metrics(addr, &names, page, shared).await })
    });
    let pages: Vec<_> = pages.collect();
    // Bind errors are reported now; afterwards the tasks live as long as the process.
    for listening in [Some(unix), tcp].into_iter().flatten().chain(pages) {
        let serving = listening.await.map_err(task_error)??;
        io.spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(target: "tortie", "the API is no longer served: {error}");
            }
        });
    }
    Ok(())
}

fn task_error(error: tokio::task::JoinError) -> AgentError {
    AgentError::System("run a task", std::io::Error::other(error))
}
