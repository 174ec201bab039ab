//! Clients that connect through the edges.

use model::InstanceId;
use protocol::edge::{ConnId, Input, Output};

use crate::world::{Event, ToDaemon, World};

impl World {
    pub fn next_client(&mut self) {
        let pause = self.rng.between(50, 600);
        self.after(pause, Event::Client);
        let edges: Vec<usize> = (0..self.machines.len())
            .filter(|at| {
                let here = &self.machines[*at];
                !here.paused && !here.suspended && here.daemon.as_ref().is_some_and(|d| d.edge.is_some())
            })
            .collect();
        let Some(machine) = self.rng.pick(&edges).copied() else { return };
        let ports: Vec<u16> = self.machines[machine]
            .daemon
            .as_ref()
            .map_or(Vec::new(), |daemon| daemon.listening.iter().copied().collect());
        let Some(port) = self.rng.pick(&ports).copied() else { return };
        let conn = ConnId(self.number());
        self.edge_input(machine, Input::Accepted { conn, port });
        self.arm(machine);
    }

    pub fn edge_output(&mut self, machine: usize, output: Output) {
        match output {
            Output::Listen { port } => {
                let fails = !self.calm && self.rng.chance(30);
                let input = match fails {
                    true => Input::ListenFailed { port, message: "in use".to_owned() },
                    false => Input::Listening { port },
                };
                if let Some(daemon) = self.machines[machine].daemon.as_mut().filter(|_| !fails) {
                    daemon.listening.insert(port);
                }
                self.tell_daemon(1, machine, ToDaemon::Edge(input));
            }
            Output::Unlisten { port } => {
                if let Some(daemon) = self.machines[machine].daemon.as_mut() {
                    daemon.listening.remove(&port);
                }
                self.tell_daemon(1, machine, ToDaemon::Edge(Input::Unlistened { port }));
            }
            Output::Dial { conn, attempt, instance, address } => {
                let input = match self.dials(machine, instance, &address) {
                    true => Input::Dialled { conn, attempt },
                    false => {
                        self.cover.hit("client dial failed");
                        Input::DialFailed { conn, attempt }
                    }
                };
                let delay = self.rng.between(1, 300);
                self.tell_daemon(delay, machine, ToDaemon::Edge(input));
            }
            Output::Copy { conn, instance } => {
                self.cover.hit("client connection made");
                self.check_copy(machine, instance);
                let delay = self.rng.between(10, 20_000);
                self.tell_daemon(delay, machine, ToDaemon::Edge(Input::Closed { conn }));
            }
            Output::Cut { .. } => self.cover.hit("client connection cut"),
            Output::Hold { .. } | Output::Refuse { .. } | Output::Serves(_) => {}
        }
    }

    fn dials(&self, from: usize, instance: InstanceId, address: &str) -> bool {
        let Some((host, port)) = address.split_once(':') else { return false };
        let there = (0..self.machines.len()).find(|at| self.machines[*at].id.as_str() == host);
        let (Some(there), Ok(port)) = (there, port.parse()) else { return false };
        let reached = !self.blocked.contains(&(from, there)) && !self.blocked.contains(&(there, from));
        reached && self.accepts(there, instance, port)
    }
}
