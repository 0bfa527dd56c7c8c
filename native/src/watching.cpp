#include "watching.hpp"

#include <algorithm>
#include <cmath>

namespace tierup {
namespace {

// What two looks at the counter take, best of some: part of the overhead of each region.
uint64_t look_ticks() {
  static const uint64_t best = [] {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 64; ++i) {
      const uint64_t began = ticks();
      least = std::min(least, ticks() - began);
    }
    return least;
  }();
  return best;
}

}  // namespace

WatchedCall::WatchedCall(size_t slots, std::span<const Value> given, ThreadCounters* counted) : group_(counted) {
  const uint64_t began = ticks();
  regions.resize(std::min(slots, kMaxRegions));
  inputs.resize(std::min(given.size(), kMaxInputs));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor* tensor = as_tensor(given[i]);
    if (tensor == nullptr || tensor->dtype == kString) continue;
    inputs[i].tensor = true;
    inputs[i].statistics = statistics_of(*tensor);
  }
  if (group_ != nullptr && !group_->start()) group_ = nullptr;
  counters = group_ != nullptr ? group_->size() : 0;
  began_ = ticks();
  overhead = before_call_ = began_ - began;
}

void WatchedCall::enter() {
  const uint64_t began = ticks();
  if (group_ != nullptr && !group_->read(before_)) group_ = nullptr;
  entered_ = ticks();
  overhead += entered_ - began;
}

void WatchedCall::leave(size_t slot) {
  const uint64_t left = ticks();
  if (slot < regions.size()) {
    RegionSpan& region = regions[slot];
    region.ticks += left - entered_;
    ++region.runs;
    CounterSample after;
    std::array<double, kRegionCounters> counts{};
    if (group_ != nullptr && group_->read(after) && counts_between(before_, after, {counts.data(), counters})) {
      for (size_t i = 0; i < counters; ++i) region.counts[i] += counts[i];
      ++region.counted;
    }
  }
  overhead += ticks() - left + look_ticks();
}

void WatchedCall::end() {
  const uint64_t ended = ticks();
  if (counters != 0 && group_ != nullptr) group_->stop();
  group_ = nullptr;
  taken = ended - began_;
  taken -= std::min(taken, overhead - before_call_);
  overhead += ticks() - ended;
}

void Watching::keep(WatchedCall&& call) {
  const uint64_t began = ticks();
  const std::unique_lock hold(mutex_, std::try_to_lock);
  if (!hold) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return again(gap());
  }
  hashes_.resize(call.inputs.size());
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    InputLook& input = call.inputs[i];
    input.same = input.tensor && seen_ != 0 && input.statistics.hash == hashes_[i];
    hashes_[i] = input.statistics.hash;
  }
  WatchedCall& place = ring_[written_.fetch_add(1, std::memory_order_relaxed) % kKept];
  place = std::move(call);
  if (waiting_.load(std::memory_order_relaxed) == kKept) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
  } else {
    waiting_.fetch_add(1, std::memory_order_relaxed);
  }
  place.overhead += ticks() - began;
  again(next_gap(place));
}

// So many calls that watching this one, and looking into it, is at most kShare of them. The shortest of the last calls
// stands for all: one that was interrupted says nothing of the others.
uint64_t Watching::next_gap(const WatchedCall& call) {
  lately_[seen_++ % kCompared] = std::max<uint64_t>(call.taken, 1);
  const auto last = static_cast<std::ptrdiff_t>(std::min<uint64_t>(seen_, kCompared));
  const auto shortest = static_cast<double>(*std::min_element(lately_.begin(), lately_.begin() + last));
  const auto cost = static_cast<double>(call.overhead + analysis_.load(std::memory_order_relaxed));
  const auto calls = static_cast<uint64_t>(std::clamp(std::ceil(cost / (kShare * shortest)), 1.0, 1e12));
  // Up to half as many more, lest traffic that repeats itself is always met at the same place.
  return calls + (seen_ * 0x9e3779b97f4a7c15 >> 32) % (calls / 2 + 2);
}

void Watching::watch_closely(uint64_t calls) {
  const bool waiting = left_.load(std::memory_order_relaxed) != 0;
  if (calls == 0 || (!waiting && !busy_.load(std::memory_order_relaxed))) return;  // none is watched at all
  closely_.store(calls - 1, std::memory_order_relaxed);
  if (waiting) left_.store(1, std::memory_order_relaxed);
}

void Watching::again(uint64_t calls) {
  gap_.store(calls, std::memory_order_relaxed);
  if (const uint64_t more = closely_.load(std::memory_order_relaxed); more != 0) {
    closely_.store(more - 1, std::memory_order_relaxed);
    calls = 1;
  }
  // Not if watching was turned off meanwhile.
  if (busy_.exchange(false, std::memory_order_relaxed)) left_.store(calls, std::memory_order_relaxed);
}

void Watching::set_on(bool on) {
  if (on) start_ticks();
  busy_.store(false, std::memory_order_relaxed);
  left_.store(on ? kFirst : 0, std::memory_order_relaxed);
}

void Watching::set_analysis_ns(double nanoseconds) {
  const double cost = std::clamp(nanoseconds / ns_per_tick(), 0.0, 1e15);
  analysis_.store(static_cast<uint64_t>(cost), std::memory_order_relaxed);
}

bool Watching::ask() {
  if (waiting_.load(std::memory_order_relaxed) < kEnough) return false;
  const uint64_t written = written_.load(std::memory_order_relaxed);
  if (written < ask_at_.load(std::memory_order_relaxed)) return false;
  ask_at_.store(written + kKept, std::memory_order_relaxed);
  return true;
}

std::vector<WatchedCall> Watching::take() {
  std::vector<WatchedCall> taken;
  const std::unique_lock hold(mutex_, std::try_to_lock);
  if (!hold) return taken;
  ask_at_.store(0, std::memory_order_relaxed);
  const uint64_t written = written_.load(std::memory_order_relaxed);
  const uint64_t waiting = waiting_.exchange(0, std::memory_order_relaxed);
  for (uint64_t i = written - waiting; i < written; ++i) taken.push_back(std::move(ring_[i % kKept]));
  return taken;
}

}  // namespace tierup
