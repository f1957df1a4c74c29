"""The web console: static files that a browser runs, and what the broker needs to serve them.

`static/` has ES modules and one style sheet, served as they are: `app.js` is the frame, `lib/` what pages share, and
`pages/` has one file a page. The console talks to `/v1` with the token of its user, like any other client.
"""
