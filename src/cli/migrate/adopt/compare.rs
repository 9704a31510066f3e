//! First steps of an adoption: compares BIRD and Felix with the intent, checks for obstacles, and saves a
//! snapshot for the rollback. Nothing of Calico is changed here.

use super::{Session, data_planes, is_over};
use crate::cli::failure::{Exit, Failure};
use crate::cli::migrate::daemons::StopWith;
use crate::cli::migrate::journal::{Record, Step};
use crate::cli::migrate::plan::{Inventory, names};
use crate::cli::migrate::report::Progress;
use crate::cli::migrate::restarts;
use crate::cli::migrate::trial::{self, Compared};
use crate::host_checks::{MigrationPhase, Restarts};
use tortie_config::counted;

/// Reason for skipping a step in a resumed adoption.
const DONE_BEFORE: &str = "done before, and Calico's daemons were ended since";

impl Session<'_> {
    /// True if the interrupted adoption had begun to stop Calico's daemons.
    fn has_stopped(&self) -> bool {
        self.journal.as_ref().is_some_and(|j| j.has_begun(Step::Stop) && !is_over(j))
    }

    /// Compares, and reports obstacles to the adoption.
    pub(super) async fn compare(&mut self, progress: &mut Progress) -> Result<(), Failure> {
        if self.has_stopped() {
            progress.skip(self.line(Step::Compare), DONE_BEFORE);
            return Ok(());
        }
        let running = &self.daemons;
        if self.inventory == Inventory::default() && running.is_empty() {
            let text = "there is nothing of Calico on this host: start the agent (systemctl start tortie)";
            return Err(Failure::new(Exit::No, "nothing-to-adopt", text));
        }
        if !running.is_empty() && self.command.stop.is_empty() && !self.command.dry_run {
            let text = format!(
                "{} runs, and no option says how to end it; suggested for what runs it: {}",
                names(running),
                StopWith::suggested(running)
            );
            return Err(Failure::usage(text));
        }
        self.command.stop.check(running)?;
        if !self.command.dry_run {
            // A BIRD in graceful restart recovery has not written its routes, which would only show as
            // differences.
            restarts::over(&self.command.sockets.bird_socket, self.wait(), progress).await?;
        }
        let mut found = Compared::default();
        let (wait, sockets) = (self.wait(), &self.command.sockets.bird_socket);
        let line = self.line(Step::Compare);
        let against = self.against();
        let compared = progress
            .step(line, async {
                found = trial::compare(&self.context.globals, sockets, wait).await?;
                found.differences.extend(against);
                Ok(found.in_words())
            })
            .await;
        progress.report.differences.clone_from(&found.differences);
        progress.report.not_judged.clone_from(&found.not_judged);
        compared?;
        for text in &found.differences {
            progress.say(&format!("       differs: {text}"));
        }
        for text in &found.not_judged {
            progress.say(&format!("       not judged: {text}"));
        }
        if !found.differences.is_empty() && !self.command.accept_differences && !self.command.dry_run {
            let text = format!(
                "{} between the state that Calico left and the desired state of Tortie: fix them, or accept \
                 them with --accept-differences. Nothing was changed",
                counted(found.differences.len(), "difference")
            );
            return Err(Failure::new(Exit::Refused, "differences", text));
        }
        Ok(())
    }

    /// Waits until stopping BIRD would lose no routes, and saves the snapshot.
    pub(super) async fn keep(&mut self, progress: &mut Progress) -> Result<(), Failure> {
        // A restart may have begun meanwhile; or, in a resumed adoption, the daemons may still run or run
        // again.
        restarts::over(&self.command.sockets.bird_socket, self.wait(), progress).await?;
        if self.has_stopped() {
            progress.skip(self.line(Step::Save), DONE_BEFORE);
            return Ok(());
        }
        let line = self.line(Step::Save);
        let words = self.inventory.in_words();
        let (marks, stop, daemons) = (self.marks(), self.command.stop.clone(), self.daemons.clone());
        let (node, socket) = (self.context.globals.node_name()?, self.socket().to_owned());
        let snapshot = self.snapshot.clone();
        let journal = self.journal()?;
        progress.report.phase = MigrationPhase::Adopting.as_str().to_owned();
        progress
            .step(line, async {
                journal.write(Record { stop, daemons, ..Record::new(node, socket, marks) })?;
                for step in [Step::Compare, Step::Save] {
                    journal.begin(step)?;
                    journal.keep(&snapshot)?;
                    journal.end(step)?;
                }
                Ok(format!("{words} are kept"))
            })
            .await
    }

    /// Returns obstacles that the comparison does not find.
    fn against(&self) -> Vec<String> {
        let rules = self.snapshot.rules.iter().filter_map(|saved| {
            let why = saved.listing().drops_without_felix("cali")?;
            let tool = saved.tool();
            Some(format!(
                "rules {tool}: {why}, and only Felix's rules let workloads pass it. Fix: {tool} -A FORWARD -i cali+ -j ACCEPT; \
                 {tool} -A FORWARD -o cali+ -j ACCEPT"
            ))
        });
        let planes = data_planes::others().into_iter().map(|(text, fix)| format!("host {text}. Fix: {fix}"));
        rules.chain(planes).collect()
    }

    pub(super) fn informational(&mut self, progress: &mut Progress) -> Result<(), Failure> {
        progress.report.phase = "planned".to_owned();
        let now = Restarts::look(&self.command.sockets.bird_socket, &self.daemons);
        for step in Step::ALL.into_iter().skip(1) {
            let mut line = self.line(step);
            let at = progress.report.steps.len() + 1;
            progress.say(&format!("{at:>2}/{}  {:<14} would: {}", Step::ALL.len(), line.step, line.what));
            if step == Step::Save && !now.under_way.is_empty() {
                line.detail = format!("waits first: {}", now.under_way.join("; "));
                progress.say(&format!("       {}", line.detail));
            }
            progress.report.steps.push(line);
        }
        progress.report.next = vec!["Nothing was changed (--dry-run).".to_owned()];
        if progress.report.differences.is_empty() {
            return Ok(());
        }
        let text = format!(
            "{}: adopt would refuse without --accept-differences",
            counted(progress.report.differences.len(), "difference")
        );
        Err(Failure::new(Exit::No, "differences", text))
    }
}
