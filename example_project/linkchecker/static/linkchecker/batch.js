// Keeps the page of a batch up to date. Each poll also lets the server feed waiting links to the pool.

const root = document.getElementById("batch");
const tbody = root.querySelector("[data-rows]");
const url = root.dataset.progressUrl + window.location.search;
const HIDDEN_SECONDS = 5;
const RETRY_SECONDS = 3;

function setText(element, value) {
  const text = String(value);
  // Only real changes: a live region would otherwise be read out on every poll.
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  // On a phone the cells are laid out as blocks, which takes their table roles away unless they are written down.
  if (tag === "td") element.setAttribute("role", "cell");
  element.className = className;
  element.textContent = text;
  return element;
}

function fillRow(tr, row) {
  const key = JSON.stringify(row);
  if (tr.dataset.key === key) return;
  tr.dataset.key = key;
  tr.setAttribute("role", "row");
  tr.dataset.id = row.id;
  const link = row.href ? make("a", "", row.url) : document.createTextNode(row.url);
  if (row.href) {
    link.href = row.href;
    link.rel = "noreferrer noopener nofollow";
  }
  const first = make("td", "url", "");
  first.append(link);
  const result = make("td", "result", "");
  result.append(make("span", `pill back-${row.status}`, row.label), " ");
  result.append(make("span", "detail", row.detail));
  const numbers = [["Time", row.time], ["Size", row.size], ["Redirects", row.redirects ?? ""]].map(([label, text]) => {
    const cell = make("td", "number", text);
    cell.dataset.label = label;
    return cell;
  });
  tr.replaceChildren(first, result, ...numbers);
}

function showRows(rows) {
  const known = new Map([...tbody.rows].map((tr) => [tr.dataset.id, tr]));
  rows.forEach((row, index) => {
    const tr = known.get(String(row.id)) ?? document.createElement("tr");
    known.delete(String(row.id));
    fillRow(tr, row);
    if (tbody.rows[index] !== tr) tbody.insertBefore(tr, tbody.rows[index] ?? null);
  });
  for (const tr of known.values()) tr.remove();
}

function showBar(parts) {
  for (const part of parts) {
    const rect = root.querySelector(`rect[data-status="${part.status}"]`);
    rect.setAttribute("x", part.start);
    rect.setAttribute("width", part.width);
    const item = root.querySelector(`li[data-status="${part.status}"]`);
    item.hidden = !part.count;
    setText(item.querySelector("b"), part.count);
  }
}

function show(data) {
  for (const element of root.querySelectorAll("[data-text]")) {
    setText(element, element.dataset.text.split(".").reduce((value, name) => value[name], data));
  }
  for (const element of root.querySelectorAll("[data-optional]")) {
    setText(element, data[element.dataset.optional]);
    element.hidden = !data[element.dataset.optional];
  }
  for (const meter of root.querySelectorAll("[data-pool]")) meter.value = data.pool[meter.dataset.pool];
  const progress = root.querySelector("[data-progress]");
  progress.max = data.total || 1;
  progress.value = data.done;
  root.querySelector('[data-show="active"]').hidden = data.finished || data.cancelled;
  root.querySelector('[data-show="again"]').hidden = !data.finished || !data.without_result;
  root.querySelector('[data-show="refused"]').hidden = !data.refusals;
  root.querySelector('[data-show="empty"]').hidden = data.rows.length > 0;
  showBar(data.bar);
  showRows(data.rows);
  root.dataset.finished = data.finished;
}

async function poll() {
  let seconds = RETRY_SECONDS;
  try {
    const response = await fetch(url, { headers: { Accept: "application/json" }, credentials: "same-origin" });
    if (response.redirected) return window.location.reload(); // logged out meanwhile
    if (response.ok) {
      const data = await response.json();
      // The server draws the pager, and there can be more pages than before: a sitemap was read, problems were found.
      if (data.pages !== Number(root.dataset.pages)) return window.location.reload();
      show(data);
      if (data.finished) return;
      seconds = data.poll_after;
    }
  } catch {
    setText(root.querySelector('[data-text="phase"]'), "The server cannot be reached; trying again.");
  }
  // A hidden page polls more slowly but does not stop: it still feeds the batch.
  setTimeout(poll, 1000 * (document.hidden ? Math.max(seconds, HIDDEN_SECONDS) : seconds));
}

if (root.dataset.finished !== "true") setTimeout(poll, 1000 * Number(root.dataset.pollAfter));
