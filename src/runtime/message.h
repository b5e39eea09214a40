// Message: how work crosses from one executor to another. It is intrusive (it stands inside the
// object that crosses), so a crossing allocates nothing. After send() it belongs to the receiver
// until `run` is called there, once, from its ready queue. Messages between one pair of
// executors arrive in the order in which they were sent.
#pragma once

namespace sandbay {

struct Message {
  Message* next = nullptr;
  void (*run)(Message& message) = nullptr;
};

}  // namespace sandbay
