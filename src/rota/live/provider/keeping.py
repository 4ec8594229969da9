"""The program that keeps an agent alive where an engine has put it."""

# An agent that dies leaves its jobs to the next one. 0: it was told to end; 5: it is not wanted.
KEEP_ALIVE = """\
tries=0
while [ $tries -lt 10 ]; do
  began=$(date +%s)
  "$@" && exit
  code=$?
  [ $code -eq 5 ] && exit
  if [ $(($(date +%s) - began)) -lt 10 ]; then tries=$((tries + 1)); else tries=0; fi
  sleep 1
done
exit $code"""
