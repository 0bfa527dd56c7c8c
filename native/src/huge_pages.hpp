// Huge pages that take the place of small ones under what is read meanwhile.
//
// The kernel's own way (MADV_COLLAPSE) holds the page away from all readers while it finds and fills the new one, 5 ms
// where a host has to back it first. Here a page is found and filled aside, and put in place by changing the map. A
// thread that steps back fills it; the one that asks keeps its priority, since it may hold a lock that calls wait for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace tierup {

// Memory aside, in huge pages that are backed one by one, as they are needed.
class HugePages {
 public:
  static constexpr size_t kBytes = size_t{2} << 20;  // of one

  // Room for so many; room for none where the system has none.
  explicit HugePages(size_t pages) noexcept;
  ~HugePages() { give_back(); }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  // Puts the next page in the place of what lies from `address` on, a border of huge pages in private memory, with what
  // that holds, once a thread behind others has filled it. Others may read there all the time; nobody may write. 0, or
  // what the system says is wrong with that.
  int take_place_of(uintptr_t address) noexcept;

  // What is left goes back to the system. Waits for the thread that fills pages, which may take a while to end.
  void give_back() noexcept;

  double filling_s() const { return filling_s_; }  // of a core, that filling took so far

 private:
  void fill() noexcept;

  std::thread filler_;  // there from the first page on
  std::atomic<uint32_t> asked_{0}, filled_{0};
  void* place_ = nullptr;  // this and what follows: the filler's from asking until it has filled
  bool stop_ = false;
  double filling_s_ = 0;
  uintptr_t next_ = 0, end_ = 0;  // what is left; no longer ours below
};

}  // namespace tierup
