/** A link on another site may lead to a page of the console, and to nothing else: only `/` is opened. */

// The question mark makes it another address: with the same one, the browser would not ask the broker again.
if (location.pathname === "/" && !location.href.includes("?")) location.replace(`/?${location.hash}`);
else document.querySelector("a")?.focus();

export {};
