// The layers of the way between a host and its drives, outermost first: Outermost, ModelledPort,
// ModelledController. Any of them may be left out; they pass on what they do not time.
//
// Outermost is the one that waits. It stamps a request with the moment at which it came and answers
// when the modelled end is there. The other two only move the modelled time of what passes: on the
// way down by what the request costs, on the way up by what the answer does. So a request may reach
// the layers below ahead of its modelled time; their models book it for when it comes.
//
// Ports and controllers are borrowed, and may be shared: by all volumes of a controller, by all
// connections of a port. They belong to the layers' home executor.
#pragma once

#include <cstdint>

#include "block/layer.h"
#include "model/controller.h"
#include "model/model_clock.h"
#include "model/port.h"

namespace sandbay::model {

class Outermost final : public Layer {
 public:
  Outermost(BlockDevice& below, const ModelClock& clock) : Layer(below), clock_(clock) {}
  Task<Completion> submit(Request request) override;

 private:
  const ModelClock& clock_;
};

class ModelledPort final : public Layer {
 public:
  // Payload comes and goes in PDUs of at most `pdu_bytes`.
  ModelledPort(BlockDevice& below, const ModelClock& clock, Port& port, std::uint64_t pdu_bytes)
      : Layer(below), clock_(clock), port_(port), pdu_bytes_(pdu_bytes) {}
  Task<Completion> submit(Request request) override;

 private:
  const ModelClock& clock_;
  Port& port_;
  std::uint64_t pdu_bytes_;
};

class ModelledController final : public Layer {
 public:
  ModelledController(BlockDevice& below, const ModelClock& clock, Controller& controller)
      : Layer(below), clock_(clock), controller_(controller) {}
  Task<Completion> submit(Request request) override;

 private:
  const ModelClock& clock_;
  Controller& controller_;
};

}  // namespace sandbay::model
