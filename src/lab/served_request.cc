// The way of a request.
#include "lab/served_request.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sandbay::lab {
namespace {

// When the target has the command and, of a write, its data.
TimePoint carry(VirtualConnection& connection, const Access& access, TimePoint issued) {
  if (access.read) return connection.exchange.command(issued);
  if (connection.receiving.empty()) return connection.exchange.write(issued, access.bytes);
  const auto turn = std::ranges::min_element(connection.receiving);
  *turn = connection.exchange.write(std::max(issued, *turn), access.bytes);
  return *turn;
}

}  // namespace

void LayerTimes::add(const ServedRequest& request) {
  host += (request.issued - request.start) + (request.end - request.arrived);
  link += (request.carried - request.issued) + (request.arrived - request.answered);
  controller += (request.accepted - request.carried) + (request.answered - request.done);
  storage += request.done - request.accepted;
}

void LayerTimes::add(const LayerTimes& others) {
  host += others.host;
  link += others.link;
  controller += others.controller;
  storage += others.storage;
}

Task<ServedRequest> serve_request(VirtualArray* array, VirtualVolume* volume, Access access,
                                  TimePoint start) {
  Executor& home = array->home();
  const model::ModelClock& clock = array->clock();
  VirtualConnection& connection = volume->choose_connection();
  const bool write = !access.read;
  ++connection.in_flight;
  ServedRequest served{.start = start};
  served.issued = volume->host->host->issue(start);
  served.carried = carry(connection, access, served.issued);
  served.accepted = volume->controller->accept(write, access.bytes, served.carried);
  co_await clock.wait_until(served.accepted, home);

  const TimePoint begun = clock.modelled(home.now());
  Request request;
  request.operation = write ? Operation::kWrite : Operation::kRead;
  request.extent = {.first = access.offset / kAccessSectorBytes,
                    .block_count = access.bytes / kAccessSectorBytes};
  request.data = array->payloads().try_allocate(access.bytes);
  assert(!request.data.empty());
  Completion completion = co_await volume->device->submit(std::move(request));
  completion.data.clear();
  served.error = completion.error;

  // If the timer was late, it was not the storage's time.
  served.done = served.accepted + (clock.modelled(home.now()) - begun);
  served.answered = volume->controller->answer(write, access.bytes, served.done);
  served.arrived = connection.exchange.answer(served.answered, access.read ? access.bytes : 0);
  served.end = volume->host->host->complete(write, access.bytes, served.arrived);
  co_await clock.wait_until(served.end, home);
  --connection.in_flight;
  co_return served;
}

}  // namespace sandbay::lab
