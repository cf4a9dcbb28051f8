# The commands of daily work. `make test` is the one that decides; longer logic is in scripts/.

# Two cargo builds at once only wait for each other's locks, so `make -j` runs one target after the other.
.NOTPARALLEL:
.PHONY: help test check sdk-python sdk-typescript sdk-go sdk-mixed sdk-torture model soak sim torture fuzz versions zoo bench bench-cli bench-redis bench-postgres bench-server deny doc api oldest package examples fmt clean

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

test: ## Everything: tools, format, lints, every feature alone, tests, documentation, dependencies
	@scripts/test.sh

check: ## The quick one for daily work: format, lints, tests
	@scripts/check.sh

sdk-python: ## The SDK for Python: lints, tests, scenarios, fields, a short torture (python3, Debian's venv)
	@scripts/sdk.sh python

sdk-typescript: ## The SDK for TypeScript, likewise (Node 20, npm)
	@scripts/sdk.sh typescript

sdk-go: ## The SDK for Go, likewise (Go 1.19)
	@scripts/sdk.sh go

sdk-mixed: ## Twenty processes in Rust, Python, TypeScript and Go on one lock, of which some are killed
	@scripts/sdk.sh mixed

sdk-torture: ## Workers of each SDK under each profile of faults, about 20 minutes
	@scripts/sdk.sh torture

model: ## 20 000 steps of guided histories on Redis, PostgreSQL and SQLite beside the contract, and every rule altered
	LEASEHOLD_STEPS=20000 cargo test --locked -p leasehold --all-features --test redis --test postgres_tables --test sqlite -- \
		--nocapture as_the_contract_says one_wrong_rule a_file_that_does_not_keep_something_is_seen

soak: ## Each test binary again and again, quiet and beside busy loops: how often each test failed, how long it took
	@scripts/tests.py soak

sim: ## 5 000 seeds of the deterministic simulation; scripts/sim.sh --help says how to choose others, or to see one
	@scripts/sim.sh

torture: ## Every store and front with every profile of faults, about two hours
	@scripts/torture.sh

fuzz: ## Every fuzz target for FUZZ_SECS (60) seconds; what fails says its input and SEED
	@scripts/fuzz.sh

versions: ## The tests of Redis and PostgreSQL on other versions of them (Debian, network)
	@scripts/versions.sh

bench: ## Run the library's benchmarks
	cargo bench --locked -p leasehold --features file,sqlite

bench-cli: ## Measure `leasehold run` on lock files beside flock
	@scripts/bench-cli.sh

# The others of the field are built for these, in a workspace of their own.
bench-redis: ## Measure the Redis store beside bare scripts and other locks
	cargo run --locked --release --manifest-path crates/benchmarks/Cargo.toml --bin redis

bench-postgres: ## Measure the PostgreSQL stores beside bare statements and another lock
	cargo run --locked --release --manifest-path crates/benchmarks/Cargo.toml --bin postgres

bench-server: ## Measure the lock server beside a bare handler and the bare disk (needs strace)
	cargo build --locked --release
	cargo build --locked --release --manifest-path crates/benchmarks/Cargo.toml --bin server
	@# It takes about five minutes. A server that stops answering must not hold it up for ever.
	timeout --foreground --kill-after=10 30m \
		cargo run --locked --release --manifest-path crates/benchmarks/Cargo.toml --bin server target/release/leasehold

zoo: ## Plant each defect of the bug zoo: the check that is named for it must see it
	@scripts/zoo.sh

deny: ## Check licences, sources, versions and advisories of the dependencies
	@scripts/deny.sh

doc: ## Build the documentation; a warning is an error
	RUSTDOCFLAGS="$$RUSTDOCFLAGS -D warnings" cargo doc --locked --workspace --no-deps --all-features

api: ## List the public API anew, in docs/api/: the difference belongs into the review
	@scripts/api.py write

examples: ## Run the example programs
	@scripts/examples.sh

oldest: ## Build with the oldest Rust that is supported (needs rustup, may download it)
	@scripts/oldest.sh

package: ## Package the crates that users need, and build each from its package
	@scripts/package.sh

fmt: ## Format the code
	cargo fmt --all

clean: ## Remove everything that was built, the tools too
	cargo clean --locked
	cargo clean --locked --manifest-path crates/benchmarks/Cargo.toml
