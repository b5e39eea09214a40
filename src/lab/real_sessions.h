// RealSessions: in front of a virtual array, in place of the models of its sessions: our initiator
// and our target on links of a simulated world. Each worker has a session, whose connections go
// from the adapters of its host to the ports of the array; what is negotiated is what the system's
// profile says. Hosts and controllers are models as ever.
//
// Everything is on the world's only executor, which is the array's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "iscsi/initiator.h"
#include "lab/lab_target.h"
#include "lab/served_request.h"
#include "lab/session_links.h"
#include "lab/session_volume.h"
#include "lab/virtual_array.h"
#include "runtime/buffer.h"
#include "runtime/simulation.h"
#include "runtime/sync.h"

namespace sandbay::lab {

// The world that such a case needs.
sim::WorldOptions world_with_sessions(std::uint64_t seed);
// The system as the array is to be made of: PDUs' headers are among the bytes that are sent.
ArrayProfile profile_with_sessions(ArrayProfile profile);

class RealSessions {
 public:
  // Borrows both. The array has been started.
  RealSessions(sim::World& world, VirtualArray& array);
  ~RealSessions();  // After stop(), if start() has begun.

  // Logs every worker in. The error is one line.
  Task<std::string> start(std::vector<VolumeGroup> groups);
  Task<void> stop();  // No request is in flight.

  // Of the worker that is this one of array.volumes(). Ends when the models' clock has come to the
  // end of the request.
  Task<ServedRequest> serve(std::size_t worker, Access access, TimePoint start);

 private:
  struct Worker {
    VirtualVolume* volume = nullptr;
    std::unique_ptr<SessionVolume> device;
    std::uint32_t number = 0;  // Of the logical unit.
    std::unique_ptr<iscsi::InitiatorSession> session;
    // Requests, and how many of them the host has let go; in order, also at one moment.
    std::uint64_t asked = 0;
    std::uint64_t issued = 0;
    std::unique_ptr<Condition> turn = std::make_unique<Condition>();
  };

  Task<std::string> log_in(Worker* worker, const VolumeGroup* group);
  Endpoint lay_link(VirtualConnection& connection);
  Task<void> issue(Worker* worker, TimePoint at);
  Task<Error> transfer(Worker* worker, Access access);

  Executor& home_;
  sim::World& world_;
  VirtualArray& array_;
  LabTarget target_;
  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<PortWire>> wires_;
  std::uint32_t links_ = 0;
  BufferList payload_;  // Of all requests: nobody looks at it.
};

}  // namespace sandbay::lab
