// RuleShelf: an engine's rules in the order of adding, and which of them a name, an event or a
// state concerns, so that thousands of others cost nothing then.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sandbay::fault {

struct ActiveRule;

class RuleShelf {
 public:
  using Pointer = std::shared_ptr<ActiveRule>;

  void add(Pointer rule);  // Its number is the highest.
  void remove(const ActiveRule& rule);

  std::size_t size() const noexcept { return rules_.size(); }
  bool empty() const noexcept { return rules_.empty(); }
  // In the order of adding; by number.
  const std::map<std::uint64_t, Pointer>& all() const noexcept { return rules_; }
  Pointer find(std::string_view id) const;  // Null: unknown.
  bool is_follow_up(std::string_view id) const { return followers_.contains(id); }
  // Copies, which stay whole while rules come and go.
  std::vector<Pointer> waiting_for(std::string_view event) const;
  std::vector<Pointer> with_states() const { return in_order(with_states_); }
  std::vector<Pointer> of_values() const { return in_order(of_values_); }

 private:
  using Numbered = std::map<std::uint64_t, Pointer>;
  static std::vector<Pointer> in_order(const Numbered& rules);

  Numbered rules_;
  std::map<std::string, Pointer, std::less<>> by_id_;
  std::map<std::string, Numbered, std::less<>> by_event_;
  std::map<std::string, std::size_t, std::less<>> followers_;  // How many rules' then= names it.
  Numbered with_states_;                                       // That test a state,
  Numbered of_values_;                                         // and that look at values of maps.
};

}  // namespace sandbay::fault
