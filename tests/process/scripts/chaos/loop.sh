# A shell program that Rota knows nothing of: loop.sh STEPS PAUSE CODE.
# It counts into the ledger, each step with a child of its own, and exits with CODE.

read -r -a stat < "/proc/$$/stat"
line() {
  printf '\n{"job": "%s", "id": "%s", "attempt": %d, "rank": %d, "life": "%s", "pid": %d, "born": %d, "at_s": %s, "what": "%s", "n": %d}\n' \
    "$NAME" "$ROTA_JOB_ID" "$ROTA_ATTEMPT" "${ROTA_SLOT:-0}" "$$-${stat[21]}" "$$" "${stat[21]}" \
    "$EPOCHREALTIME" "$1" "$2" >> "$LEDGER"
}

line begin 0
for ((step = 0; step != $1; step++)); do
  line step "$step"
  sleep "$2"
done
line end "$3"
exit "$3"
