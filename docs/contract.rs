// What the examples of contract.md begin with: a store with a clock that they move.

/// A wall clock that is set by hand.
#[derive(Debug, Default)]
struct Wall(std::sync::atomic::AtomicI64);

impl Wall {
    fn step(&self, ms: i64) {
        self.0.fetch_add(ms, std::sync::atomic::Ordering::SeqCst);
    }
}

impl oncelog::Clock for Wall {
    fn wall_ms(&self) -> u64 {
        1_700_000_000_000_u64.saturating_add_signed(self.0.load(std::sync::atomic::Ordering::SeqCst))
    }

    fn monotonic(&self) -> std::time::Duration {
        oncelog::SystemClock::new().monotonic()
    }
}

struct Shop {
    home: tempfile::TempDir,
    wall: std::sync::Arc<Wall>,
    broadcaster: oncelog::broadcast::Broadcaster,
}

#[allow(dead_code)]
impl Shop {
    fn open(options: oncelog::broadcast::Options) -> oncelog::Result<Self> {
        Self::open_in(tempfile::tempdir().expect("a directory"), std::sync::Arc::default(), options)
    }

    fn open_in(
        home: tempfile::TempDir,
        wall: std::sync::Arc<Wall>,
        options: oncelog::broadcast::Options,
    ) -> oncelog::Result<Self> {
        let store = oncelog::StoreOptions::new().create(oncelog::CreateMode::IfMissing);
        let clock: std::sync::Arc<dyn oncelog::Clock> = wall.clone();
        let store = oncelog::Store::open(home.path().join("store"), &store.clock(clock))?;
        let broadcaster = oncelog::broadcast::Broadcaster::open(store, options)?;
        Ok(Self { home, wall, broadcaster })
    }

    fn reopen(self, options: oncelog::broadcast::Options) -> oncelog::Result<Self> {
        self.broadcaster.close()?;
        Self::open_in(self.home, self.wall, options)
    }

    fn view(&self) -> oncelog::Result<oncelog::broadcast::StoreView> {
        let io = std::sync::Arc::new(oncelog::io::fs::FsIo::new());
        oncelog::broadcast::StoreView::open(self.home.path().join("store"), io)
    }

    fn request(&self, of_type: &str, key: &str, payload: &str) -> oncelog::broadcast::Request {
        Self::request_of(of_type, key, payload)
    }

    fn request_of(of_type: &str, key: &str, payload: &str) -> oncelog::broadcast::Request {
        let scope = oncelog::broadcast::Scope {
            principal: "billing".into(),
            message_type: of_type.into(),
            domain: "customer".into(),
            identity: "42".into(),
            generation: 0,
            client_key: key.into(),
        };
        let vchannels = vec!["mail".into(), "ledger".into()];
        oncelog::broadcast::Request::new(of_type, Some(scope), vchannels, payload.into())
            .making_vchannels()
    }

    fn submit(&self, key: &str, payload: &str) -> oncelog::Result<oncelog::broadcast::Answer> {
        self.broadcaster.submit(&self.request("Noop", key, payload), None)
    }
}
