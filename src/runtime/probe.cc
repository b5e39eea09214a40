// The deciders of a thread: a short list, newest first, that only this thread sees.
#include "runtime/probe.h"

#include <cassert>

#include "runtime/executor.h"

namespace sandbay {

namespace {

constinit thread_local Probe::Installation* newest = nullptr;

}  // namespace

constinit thread_local unsigned Probe::installed = 0;

ProbeVerdict Probe::ask(const ProbePoint& point) {
  const Executor* const here = Executor::current_or_null();
  if (here == nullptr) return {};
  for (const Installation* entry = newest; entry != nullptr; entry = entry->next_) {
    if (&entry->executor_ == here) return entry->decider_.decide(point);
  }
  return {};
}

Probe::Installation::Installation(Executor& executor, ProbeDecider& decider)
    : executor_(executor), decider_(decider), next_(newest) {
  newest = this;
  ++installed;
}

Probe::Installation::~Installation() {
  Installation** link = &newest;
  while (*link != nullptr && *link != this) link = &(*link)->next_;
  // Another thread's list would not have it: it was made there.
  assert(*link == this);
  *link = next_;
  assert(installed > 0);
  --installed;
}

}  // namespace sandbay
