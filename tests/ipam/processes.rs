//! Concurrent processes: this test program, started again with the single test `child`.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use tortie_engine::ipam::check::{Evidence, IpamState, Kind, findings};
use tortie_engine::ipam::{Ipam, Keyspace};
use tortie_store::{Store, StoreOptions};

use crate::common::etcd::{Cluster, Security};
use crate::rig::*;

const CHILD: &str = "TORTIE_TEST_IPAM_CHILD";

/// Does nothing unless it was started by [`at_once`]: `URL HOST NAME COUNT`.
#[tokio::test]
async fn child() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let [url, host, name, count] = task.split(' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let store =
        tortie_store::open(&StoreOptions { url: url.to_owned(), ..StoreOptions::default() }).await.unwrap();
    let ipam = Ipam::new(store);
    for n in 0..count.parse::<u32>().unwrap() {
        let begun = Instant::now();
        let handle = format!("{name}.{n}");
        let given = ipam.assign(&held(any(host, 1), &handle)).await.unwrap();
        // Every second allocation is released, so lists and blocks change concurrently.
        if n % 2 == 1 {
            assert_eq!(ipam.release_handle(&handle).await.unwrap(), [given[0].addr]);
        } else {
            println!("got {} {}", given[0].addr, begun.elapsed().as_micros());
        }
    }
}

fn start(task: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::child", "--nocapture", "--test-threads", "1"]);
    command.env(CHILD, task).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs one process per host name; checks the addresses that they kept.
async fn at_once(url: &str, store: &Arc<dyn Store>, hosts: &[String], count: u32) {
    let tasks = hosts.iter().enumerate().map(|(n, host)| format!("{url} {host} p{n} {count}"));
    let children: Vec<Child> = tasks.map(|task| start(&task)).collect();
    let mut got: Vec<IpAddr> = Vec::new();
    let mut times: Vec<u64> = Vec::new();
    for mut child in children {
        let (mut text, mut errors) = (String::new(), String::new());
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(child.wait().unwrap().success(), "{text}{errors}");
        // The test harness prints the test's name before the first line.
        for line in text.lines().filter_map(|line| line.split_once("got ")) {
            let (addr, micros) = line.1.split_once(' ').unwrap();
            got.push(addr.parse().unwrap());
            times.push(micros.parse().unwrap());
        }
    }
    times.sort_unstable();
    println!("{} addresses; p50 {} us, max {} us", got.len(), times[times.len() / 2], times[times.len() - 1]);
    assert_eq!(got.len(), hosts.len() * count.div_ceil(2) as usize);
    let unique: BTreeSet<IpAddr> = got.iter().copied().collect();
    assert_eq!(unique.len(), got.len(), "an address was given twice");
    let ipam_state = IpamState::load(store.as_ref(), &Keyspace::Global).await.unwrap();
    let stored = ipam_state.blocks.values().map(|block| block.value.allocated().count()).sum::<usize>();
    assert_eq!(stored, got.len());
    let found = findings(&ipam_state, &Evidence::default());
    assert!(found.iter().all(|finding| finding.kind == Kind::Unproven), "{found:?}");
}

#[tokio::test]
async fn sixty_four_processes_on_one_etcd() {
    let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
    let store = tortie_store::open(&cluster.options()).await.unwrap();
    Rig::on(Arc::clone(&store), None).pool("10.0.0.0/20", "{}").await;
    // Half of them compete for the blocks of one host.
    let hosts: Vec<String> =
        (0..64).map(|n| if n % 2 == 0 { "busy".to_owned() } else { format!("h{n}") }).collect();
    at_once(&cluster.url(), &store, &hosts, 4).await;
}

#[tokio::test]
#[ignore = "takes a minute"]
async fn long_sixty_four_processes_for_one_host() {
    let Some(cluster) = Cluster::start(1, Security::Plain) else { return };
    let store = tortie_store::open(&cluster.options()).await.unwrap();
    Rig::on(Arc::clone(&store), None).pool("10.0.0.0/18", "{}").await;
    at_once(&cluster.url(), &store, &vec!["busy".to_owned(); 64], 40).await;
}

#[tokio::test]
async fn sixteen_processes_on_one_file() {
    let dir = crate::common::tools::folder_in_memory();
    let url = format!("sqlite:{}", dir.path().join("store.db").display());
    let store =
        tortie_store::open(&StoreOptions { url: url.clone(), create: true, ..StoreOptions::default() })
            .await
            .unwrap();
    Rig::on(Arc::clone(&store), None).pool("10.0.0.0/20", "{}").await;
    at_once(&url, &store, &vec!["busy".to_owned(); 16], 10).await;
}
