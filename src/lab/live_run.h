// One case of an experiment in real time, over iSCSI: against a system that is made for it in this
// process, or against logical units elsewhere. The workers are those of a run in virtual time, with
// the same requests.
//
// Of a system of the lab the models' time is stretched: with a time scale of 4 every modelled
// second takes four, so that a small machine can play a large system. Results are in the models'
// time. What is no model runs at its own pace, such as the time that the cache waits for more to
// write with one flush.
#pragma once

#include <atomic>
#include <expected>
#include <span>
#include <string>
#include <vector>

#include "iscsi/initiator_url.h"
#include "lab/experiment.h"
#include "lab/virtual_run.h"
#include "runtime/executor.h"
#include "runtime/task.h"

namespace sandbay::lab {

struct LiveOptions {
  // Logical units elsewhere, one for each volume of a case: iscsi://[user%password@]host/iqn/lun.
  // Empty: a system of the lab.
  std::vector<std::string> urls;
  bool write = false;     // Consent: needed to write to them.
  double time_scale = 1;  // Real seconds in one of the models', 1 … kLargestTimeScale;
                          // with URLs 1.
};

struct LiveFailure {
  std::string what;      // One line.
  bool of_case = false;  // It asks for what its targets have not: other cases may do.
};

// Why the plan cannot be run so, in one line; empty if it can.
std::string check_live(const Plan& plan, const LiveOptions& options);

// The options and the plan's cases have been checked. On executor 0, where the system lives; the
// workers are on the last one.
Task<std::expected<CaseResult, LiveFailure>> run_live(const ArrayProfile* profile, Case what,
                                                      const LiveOptions* options,
                                                      std::span<Executor* const> executors,
                                                      const std::atomic<bool>* stop);

// The same on reactors of its own. `stop`, if any, ends it early: then it is an error, too.
std::expected<CaseResult, LiveFailure> run_live_case(const ArrayProfile& profile, Case what,
                                                     const LiveOptions& options,
                                                     const std::atomic<bool>* stop = nullptr);

}  // namespace sandbay::lab
