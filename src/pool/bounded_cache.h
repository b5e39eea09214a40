// BoundedCache: values that are loaded when they are needed and forgotten when nobody needs them,
// within a limit of bytes that only what cannot be forgotten exceeds.
//
// A value stays while somebody has a Pin on it, and while it is changed: from change() until a
// checkpoint has it (stored()). Whoever asks for a value that is being loaded waits for it. The
// least recently used goes first.
//
// Value has `std::size_t byte_count() const`. Used on one executor.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "runtime/error.h"
#include "runtime/sync.h"

namespace sandbay::pool {

template <class Key, class Value, class Hash>
class BoundedCache {
  struct Node {
    Key key{};
    std::unique_ptr<Value> value;  // Null while it is loaded.
    std::size_t bytes = 0;
    unsigned pins = 0;
    std::uint64_t changed = 0;  // The latest sequence that changed it; 0: as stored.
    Node* newer = nullptr;      // Among those that may go.
    Node* older = nullptr;
    bool listed = false;
  };

 public:
  explicit BoundedCache(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  BoundedCache(const BoundedCache&) = delete;
  BoundedCache& operator=(const BoundedCache&) = delete;

  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : cache_(other.cache_), node_(std::exchange(other.node_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept {
      release();
      cache_ = other.cache_;
      node_ = std::exchange(other.node_, nullptr);
      return *this;
    }
    ~Pin() { release(); }

    explicit operator bool() const noexcept { return node_ != nullptr; }
    Value& operator*() const noexcept { return *node_->value; }
    Value* operator->() const noexcept { return node_->value.get(); }
    void release() noexcept {
      if (node_ != nullptr) cache_->unpin(*std::exchange(node_, nullptr));
    }

   private:
    friend class BoundedCache;
    Pin(BoundedCache* cache, Node* node) : cache_(cache), node_(node) { cache->pin(*node); }
    BoundedCache* cache_ = nullptr;
    Node* node_ = nullptr;
  };

  // What is here, pinned; an empty pin if it is not.
  Pin find(const Key& key) {
    const auto found = nodes_.find(key);
    if (found == nodes_.end() || found->second->value == nullptr) return {};
    return Pin(this, found->second.get());
  }
  // It is not here, and nobody is loading it.
  Pin insert(const Key& key, Value value) {
    Node& node = add(key);
    fill(node, std::move(value));
    return Pin(this, &node);
  }
  // What is here, or what `load(owner, key)`, a Task<Result<Value>>, brings.
  template <class Owner>
  Task<Result<Pin>> get(Owner* owner, Key key, Task<Result<Value>> (Owner::*load)(Key)) {
    while (true) {
      const auto found = nodes_.find(key);
      if (found == nodes_.end()) break;
      if (found->second->value != nullptr) {
        ++hits_;
        co_return Pin(this, found->second.get());
      }
      co_await loaded_.wait();
    }
    ++misses_;
    Node& node = add(key);
    node.pins = 1;  // Nobody takes it away.
    Result<Value> value = co_await (owner->*load)(key);
    node.pins = 0;
    loaded_.notify_all();
    if (!value.has_value()) {
      nodes_.erase(key);
      co_return std::unexpected(value.error());
    }
    fill(node, std::move(*value));
    co_return Pin(this, &node);
  }

  // For whoever is about to change a value that is here and pinned, by the record of that sequence.
  Value& change(const Key& key, std::uint64_t sequence) {
    const auto found = nodes_.find(key);
    assert(found != nodes_.end() && found->second->value != nullptr);
    Node& node = *found->second;
    if (node.changed == 0) changed_.emplace(key, &node);
    unlist(node);
    node.changed = sequence;
    return *node.value;
  }
  // Its size may be another now.
  void resized(const Key& key) {
    Node& node = *nodes_.at(key);
    bytes_ -= node.bytes;
    node.bytes = node.value->byte_count() + kOverhead;
    bytes_ += node.bytes;
    evict();
  }
  // Calls visit(key, value) for all that are changed.
  template <class Visit>
  void for_changed(Visit visit) {
    for (auto& [key, node] : changed_) visit(key, *node->value);
  }
  std::size_t changed_count() const noexcept { return changed_.size(); }
  // What was changed up to `sequence` is in the store.
  void stored(std::uint64_t sequence) {
    for (auto at = changed_.begin(); at != changed_.end();) {
      Node& node = *at->second;
      if (node.changed > sequence) {
        ++at;
        continue;
      }
      node.changed = 0;
      at = changed_.erase(at);
      settle(node);
    }
    evict();
  }

  std::size_t size() const noexcept { return nodes_.size(); }
  std::size_t bytes() const noexcept { return bytes_; }
  std::uint64_t hits() const noexcept { return hits_; }
  std::uint64_t misses() const noexcept { return misses_; }

 private:
  Node& add(const Key& key) {
    auto node = std::make_unique<Node>();
    node->key = key;
    const auto [at, added] = nodes_.emplace(key, std::move(node));
    assert(added);
    return *at->second;
  }
  void fill(Node& node, Value value) {
    node.value = std::make_unique<Value>(std::move(value));
    node.bytes = node.value->byte_count() + kOverhead;
    bytes_ += node.bytes;
  }
  void pin(Node& node) noexcept {
    if (node.pins++ == 0) unlist(node);
  }
  void unpin(Node& node) noexcept {
    assert(node.pins > 0);
    if (--node.pins > 0) return;
    settle(node);
    evict();
  }
  void settle(Node& node) noexcept {
    if (node.pins > 0 || node.changed > 0 || node.listed) return;
    node.listed = true;
    node.older = newest_;
    node.newer = nullptr;
    (newest_ != nullptr ? newest_->newer : oldest_) = &node;
    newest_ = &node;
  }
  void unlist(Node& node) noexcept {
    if (!node.listed) return;
    node.listed = false;
    (node.newer != nullptr ? node.newer->older : newest_) = node.older;
    (node.older != nullptr ? node.older->newer : oldest_) = node.newer;
  }
  void evict() noexcept {
    while (bytes_ > limit_bytes_ && oldest_ != nullptr) {
      Node& node = *oldest_;
      unlist(node);
      bytes_ -= node.bytes;
      const Key key = node.key;
      nodes_.erase(key);
    }
  }

  static constexpr std::size_t kOverhead = sizeof(Node) + 64;

  std::size_t limit_bytes_;
  std::size_t bytes_ = 0;
  std::unordered_map<Key, std::unique_ptr<Node>, Hash> nodes_;
  std::unordered_map<Key, Node*, Hash> changed_;
  Node* newest_ = nullptr;
  Node* oldest_ = nullptr;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
  Condition loaded_;
};

}  // namespace sandbay::pool
