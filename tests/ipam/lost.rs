//! The answer of a transaction is lost, and other clients write before its result is looked up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tortie_engine::ipam::{AllocationRequest, Ipam};

use crate::faults::Faulty;
use crate::rig::*;

/// Returns a caller whose next commit is executed without an answer; in between, another client makes the
/// request `other`.
fn loses(rig: &Rig, other: AllocationRequest) -> Ipam {
    let faulty = Faulty::new(Arc::clone(&rig.store), 1);
    faulty.armed.store(false, Ordering::Relaxed);
    *faulty.meanwhile.lock().unwrap() = Some((rig.ipam.clone(), other));
    Ipam::new(Arc::new(faulty))
}

#[tokio::test]
async fn an_assignment_is_found_by_its_handle() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let caller = loses(&rig, held(any("h1", 1), "other"));
    let given = caller.assign(&held(any("h1", 2), "mine")).await.unwrap();
    assert_eq!(addrs(&given), ["10.0.0.0", "10.0.0.1"]);
    assert_eq!(rig.ipam.allocated_to("mine").await.unwrap().len(), 2, "and not given twice");
}

#[tokio::test]
async fn without_a_handle_nobody_can_know() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let error = loses(&rig, any("h1", 1)).assign(&any("h1", 1)).await.unwrap_err();
    assert!(error.to_string().contains("not known"), "{error}");
}

#[tokio::test]
async fn an_address_that_somebody_else_got_meanwhile_is_his() {
    for holder in [Some("mine"), None] {
        let rig = Rig::new(&["10.0.0.0/26"]).await;
        let mine = rig.assign(&held(any("h1", 1), "mine")).await[0].addr;
        let caller = loses(&rig, held(exact("h1", &mine.to_string()), "other"));
        let released = caller.release(&[mine], holder).await.unwrap();
        assert_eq!((released.released, released.kept.len()), (vec![mine], 0));
        assert_eq!(rig.ipam.allocated_to("other").await.unwrap(), [mine]);
    }
    // Two allocations that cannot be distinguished: no guess is made.
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let mine = rig.assign(&any("h1", 1)).await[0].addr;
    let error = loses(&rig, exact("h1", &mine.to_string())).release(&[mine], None).await.unwrap_err();
    assert!(error.to_string().contains("is not known"), "{error}");
    assert!(rig.ipam.lookup(mine).await.unwrap().is_some());
}

#[tokio::test]
async fn the_release_of_a_handle_reports_what_it_had() {
    let rig = Rig::new(&["10.0.0.0/26"]).await;
    let mine = rig.assign(&held(any("h1", 1), "mine")).await[0].addr;
    let caller = loses(&rig, held(exact("h1", &mine.to_string()), "other"));
    assert_eq!(caller.release_handle("mine").await.unwrap(), [mine]);
    assert_eq!(rig.ipam.allocated_to("other").await.unwrap(), [mine]);
}
