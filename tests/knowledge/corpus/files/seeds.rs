use std::collections::HashMap;

/// A packet of seeds.
#[derive(Debug, Clone)]
pub struct Packet {
    pub name: String,
    pub count: u32,
}

pub trait Sow {
    fn sow(&mut self, rows: u32) -> u32;
}

impl Sow for Packet {
    fn sow(&mut self, rows: u32) -> u32 {
        let used = rows.min(self.count);
        self.count -= used;
        used
    }
}

pub(crate) fn tally(packets: &[Packet]) -> HashMap<String, u32> {
    packets.iter().map(|p| (p.name.clone(), p.count)).collect()
}
