// LocalMember: a member whose hardware is this daemon's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "group/hardware.h"
#include "group/member.h"

namespace sandbay::group {

class LocalMember final : public Member {
 public:
  LocalMember(std::string name, std::unique_ptr<Hardware> hardware)
      : Member(std::move(name)), hardware_(std::move(hardware)) {}

  Hardware* hardware() const noexcept override { return hardware_.get(); }
  std::string place() const override { return "local"; }
  std::string absence() const override { return hardware_->absence(); }
  std::vector<MemberSet> sets() const override;
  BlockDevice* serving(const Uuid& set) const override { return hardware_->serving(set); }
  std::string refusal(const Uuid& set) const override;
  std::string name_of(const Uuid& set) const override { return hardware_->name_of(set); }
  std::optional<Uuid> find_set(const std::string& name) const override {
    return hardware_->find_set(name);
  }
  // All of it may have been written from then on.
  void note_use(const Uuid& set, metadata::Batch& batch) override;
  void on_sets_changed(std::function<void()> callback) override {
    hardware_->on_sets_changed(std::move(callback));
  }

 private:
  std::unique_ptr<Hardware> hardware_;
};

}  // namespace sandbay::group
