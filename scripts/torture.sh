#!/usr/bin/env bash
# `make torture`: runs every store, and every front, with every profile that suits, for about two hours. Continues
# after a failure, and lists the failures at the end. SECS, FAILOVER_SECS, SEED, STORES (a front is written
# redis/two-servers) and PROFILES change the selection; HOT is how many locks are hot, where the profile allows it; OUT
# is the directory for all files, in which every run leaves its report. A store with `+wait` requires its replicas to
# confirm grants, for the profile failover alone.
set -uo pipefail
cd "$(dirname "$0")/.."

secs=${SECS:-20}
failover_secs=${FAILOVER_SECS:-200}
seed=${SEED:-$RANDOM}
hot=${HOT:-3}
out=${OUT:-target/torture}
stores=${STORES:-memory sqlite file redis redis-sentinel redis-sentinel+wait redis-cluster redis-cluster+wait
  quorum quorum-mixed postgres postgres+advisory http
  redis/server redis/two-servers redis/tls quorum/server postgres/server postgres/two-servers postgres/pgbouncer postgres/tls
  postgres+advisory/pgbouncer postgres+advisory/tls}
profiles=${PROFILES:-calm kill pause net restart clock cancel leak resources crowd logs many failover all}

# Without optimisation the workers would be busy with themselves.
cargo build --locked --release -p leasehold-cli || exit 1
leasehold=target/release/leasehold

rm -rf "$out"
mkdir -p "$out"
summary="$out/summary"
printf '%-27s %-10s %-9s %9s %9s %7s %6s\n' store profile outcome hand-overs expiries landed p99-ms | tee "$summary"
failed=0
for store in $stores; do
  for profile in $profiles; do
    run="$out/${store/\//-}-$profile"
    front=none
    [[ $store != */* ]] || front=${store#*/}
    name=${store%/*}
    time=$secs
    [[ $profile != failover ]] || time=$failover_secs
    args=(--store "${name%+wait}" --front "$front" --profile "$profile" --secs "$time")
    [[ $profile == crowd || $profile == failover ]] || args+=(--hot "$hot")
    if [[ $store == *+wait ]]; then
      [[ $profile == failover ]] || continue
      args+=(--wait-replicas 1)
    fi
    "$leasehold" torture "${args[@]}" --seed "$seed" --out "$run" >"$run.txt" 2>&1
    code=$?
    cp "$run/report.json" "$run.json" 2>/dev/null
    # 64: the profile does not suit the store.
    case $code in
      0) outcome=passed ;;
      64) continue ;;
      80) outcome=VIOLATED ;;
      81) outcome=vacuous ;;
      *) outcome="FAILED($code)" ;;
    esac
    figure() { sed -n "s/$1/\\1/p" "$run.txt" | head -1; }
    handovers=$(figure '.* \([0-9]*\) hand-overs.*')
    expiries=$(figure '.* \([0-9]*\) expiries.*')
    p99=$(figure '.*hand-over .*p99 \([0-9.]*\) ms.*')
    landed=$(($(grep 'faults landed' "$run.txt" | grep -oE '[0-9]+/' | tr '/' '+')0))
    printf '%-27s %-10s %-9s %9s %9s %7s %6s\n' "$store" "$profile" "$outcome" "$handovers" "$expiries" "$landed" "$p99" |
      tee -a "$summary"
    if [[ $code == 0 ]]; then
      # The seed reproduces a run that passed; its report stays.
      rm -rf "$run"
    else
      failed=$((failed + 1))
      tail -5 "$run.txt"
    fi
  done
done
echo
scripts/handovers.py "$out"
echo "seed $seed, $secs s each; $failed failed; the reports are in $out"
[[ $failed == 0 ]]
